"""`RedisStore`: claims in Redis, on one server or on a cluster, decided there by one script.

It is a best-effort store: a fail-over may forget what was acknowledged (`docs/stores/redis.md`).
"""

from ackwise.middleware.errors import PackageMissing

try:
    import redis  # noqa: F401  - asked for here, so that a missing driver is reported in one sentence
except ModuleNotFoundError as error:
    if error.name != "redis":
        raise
    raise PackageMissing("the Redis store needs redis; install it with pip install 'ackwise[redis]'") from None

from ackwise.stores.redis.claims import RedisStore, from_url

__all__ = ["RedisStore", "from_url"]
