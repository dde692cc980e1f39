"""Fixtures for all tests: an S3-speaking server."""

from support.s3_server import s3_bucket, s3_server, s3_url

__all__ = ["s3_bucket", "s3_server", "s3_url"]
