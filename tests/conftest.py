"""For all tests: an S3-speaking server, and hypothesis without a deadline, since a busy machine may take any time."""

from hypothesis import settings

from support.s3_server import s3_bucket, s3_server, s3_url

__all__ = ["s3_bucket", "s3_server", "s3_url"]

settings.register_profile("any time", deadline=None)
settings.load_profile("any time")
