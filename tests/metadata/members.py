"""The etcd members that a test cluster's brokerds run."""

from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.key_value import KeysError, Unknown, Unreachable
from tests.fixtures.clusters import until


def addresses_of(cluster) -> list[str]:
    """Return host:port of each etcd, for clients."""
    return [f"127.0.0.{number}:{broker.overrides['quorum.etcd.client.port']}"
            for number, broker in cluster.brokers.items() if broker.alive()]


def members_of(cluster) -> dict[str, str]:
    """Return member's name -> its id in hexadecimal, as the quorum has it."""
    def listed() -> dict:
        client = Etcd(addresses_of(cluster), timeout_s=2)
        try:
            client.get("any")
            rows = client.read("cluster/member/list", {})["members"]
        except (KeysError, Unknown, Unreachable):
            return {}
        finally:
            client.close()
        return {row.get("name", ""): f"{int(row['ID']):x}" for row in rows}
    return until(listed)
