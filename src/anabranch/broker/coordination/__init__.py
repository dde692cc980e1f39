"""Coordinators of consumer groups and the internal log they write to (`__consumer_offsets`).

The decisions are in `anabranch.coordination`; here they are carried out.
"""
