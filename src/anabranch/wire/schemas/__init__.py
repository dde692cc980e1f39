"""One small table per API: `REQUEST` and `RESPONSE`, each a `Message` with its fields and their versions.

The tables are facts about Kafka's protocol and nothing else; `wire.codec` turns them into code. A file is
named as its API is in `ApiKey`, in lower case, which is how the codec finds it. No table imports another.
"""
