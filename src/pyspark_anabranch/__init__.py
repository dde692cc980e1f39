"""Makes `format("anabranch")` known to Spark: it looks for a `DefaultSource` in every package named `pyspark_...`."""

from anabranch.pipeline.source.source import AnabranchSource as DefaultSource

__all__ = ["DefaultSource"]
