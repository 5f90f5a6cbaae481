from pylog.config import Settings
from pylog.log import partition_logs
from pylog.log.partition_logs import Role, assume


class Log:
    """Records its assigned roles."""

    def __init__(self):
        self.is_leader, self.leader_epoch, self.in_sync_count = True, 4, 1
        self.roles = []

    def become_follower(self, epoch, *, readable):
        self.roles.append(("follower", epoch, readable))

    def become_leader(self, epoch, in_sync_count, *, replicated=False):
        self.roles.append(("leader", epoch, in_sync_count, replicated))


def test_consumers_may_read_from_a_follower_and_from_no_other_log_without_a_leader():
    log = Log()
    assume(log, Role(False, 5, 2, True))
    assume(log, Role(False, 5, 0, False))
    assert log.roles == [("follower", 5, True), ("follower", 5, False)]


def test_leader_is_updated_only_on_replica_changes():
    log = Log()
    assume(log, Role(True, 4, 1, False))
    assume(log, Role(True, 5, 2, True))
    assume(log, Role(True, 5, 2, False))
    assert log.roles == [("leader", 5, 2, True), ("leader", 5, 2, False)]


def test_replicas_count_flushed_offsets_unless_disabled():
    name = "replica.flush.before.fetch.enable"
    for given, expected in (({}, True), ({name: "false"}, False)):
        settings = Settings(given)
        config = partition_logs.native_config(settings.topic_config({}), settings)
        assert config[name] is expected
