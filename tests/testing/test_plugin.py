"""The plugin in a separate pytest."""


def test_the_fixtures_give_a_broker_and_a_topic_named_after_the_test(run_pytest):
    run_pytest("""
        import socket

        def test_sending(broker, topic):
            assert topic.name == "test_sending" and topic.partitions == 1
            socket.create_connection(("127.0.0.1", broker.port)).close()
            topic.append("a")
            topic.assert_records(["a"])
    """).assert_outcomes(passed=1)


def test_tests_share_a_broker_but_nothing_that_is_on_it(run_pytest):
    run_pytest("""
        ports = set()

        def _alone(broker):
            ports.add(broker.port)
            assert broker.topics() == []
            broker.create_topic("t").append("x")

        def test_one(broker):
            _alone(broker)

        def test_two(broker):
            _alone(broker)
            assert len(ports) == 1
    """).assert_outcomes(passed=2)


def test_broker_with_faults_is_not_reused(run_pytest):
    run_pytest("""
        import pytest
        ports = []

        @pytest.mark.parametrize("hours", [0, 1, 0, 0])
        def test_the_clock(broker, hours):
            assert abs(broker.clock.now_ms() / 1000 - __import__("time").time()) < 60
            ports.append(broker.port)
            broker.clock.advance(hours=hours)

        def test_the_ports():
            assert ports[0] == ports[1] != ports[2] == ports[3]
    """).assert_outcomes(passed=5)


def test_markers_and_ini_file_configure_broker_and_topic(run_pytest, pytester):
    pytester.makeini("""
        [pytest]
        pylog_broker_directory = tmp_path
        pylog_broker_settings =
            num.partitions=4
    """)
    run_pytest("""
        import pytest

        @pytest.mark.pylog_broker(node_id=7)
        @pytest.mark.pylog_topic(name="wide", partitions=3, retention_ms=1000)
        def test_settings(broker, topic):
            assert broker.settings == {"num.partitions": "4", "node.id": "7"}
            assert "pytest-of" in broker.directory
            assert topic.name == "wide" and topic.partitions == 3

        @pytest.mark.pylog_broker(own=True)
        def test_alone(broker, pylog_brokers):
            other = pylog_brokers.make({})
            assert other.port != broker.port
    """, "--strict-markers").assert_outcomes(passed=2)


def test_brokers_of_wider_scopes_keep_their_data(run_pytest):
    run_pytest("""
        def test_one(module_broker, session_broker):
            module_broker.create_topic("t")
            session_broker.create_topic("u")

        def test_two(module_broker, session_broker):
            assert module_broker.topics() == ["t"] and session_broker.topics() == ["u"]
    """).assert_outcomes(passed=2)


def test_failed_assertion_shows_the_difference_without_internal_code(run_pytest):
    result = run_pytest("""
        def test_wrong(topic):
            topic.append("a")
            topic.assert_records(["b"])
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- value=b'b'", "*+ value=b'a'    <- partition 0, offset 0"])
    result.stdout.no_fnmatch_line("*def assert_records*")


def test_without_a_fixture_nothing_of_the_broker_is_imported(run_pytest):
    run_pytest("""
        import sys

        def test_modules():
            mine = {name for name in sys.modules if name.startswith("pylog")}
            assert mine <= {"pylog", "pylog.testing", "pylog.testing.plugin"}
    """).assert_outcomes(passed=1)


def test_fixture_clients_read_their_own_records_and_are_closed(run_pytest):
    run_pytest("""
        clients = []

        def test_round_trip(producer, consumer, topic, make_consumer):
            producer.send(topic.name, b"a")
            producer.flush()
            assert [record.value for record in consumer.poll(20)] == [b"a"]
            other = make_consumer(topic, group_id="other")
            assert [record.value for record in other.poll(20)] == [b"a"]
            clients.extend([consumer, other])

        def test_next(broker):
            from pylog.client.errors import ClosedError
            import pytest
            for client in clients:
                with pytest.raises(ClosedError):
                    client.poll(0)
            assert broker.groups() == []
    """).assert_outcomes(passed=2)


def test_brokers_can_be_child_processes_by_an_option(run_pytest):
    run_pytest("""
        import os

        def test_pid(broker, topic):
            assert broker.pid != os.getpid()
            topic.append("a")
            topic.assert_records(["a"])
    """, "--pylog-broker=process").assert_outcomes(passed=1)


def test_client_left_open_does_not_disturb_the_next_test(run_pytest):
    run_pytest("""
        from pylog.client import Consumer

        ports, left = [], []

        def test_leaves_a_consumer(broker, topic):
            topic.append("x")
            left.append(Consumer(bootstrap_servers=broker.bootstrap, group_id="g",
                                 auto_offset_reset="earliest"))
            left[0].subscribe([topic.name])
            assert left[0].poll(20)
            ports.append(broker.port)

        def test_next(broker):
            assert broker.groups() == [] and broker.port not in ports
            left[0].close(1)
    """).assert_outcomes(passed=2)


def test_brokers_that_wait_for_tests_with_other_settings_are_few(run_pytest):
    run_pytest("""
        import contextlib
        import os
        import pytest

        @pytest.fixture(params=range(8))
        def wishes(request):
            request.node.add_marker(pytest.mark.pylog_broker(num_partitions=request.param + 1))

        def test_settings(wishes, broker):
            assert broker.settings["num.partitions"]

        def test_threads():
            names = []
            for task in os.listdir("/proc/self/task"):
                with contextlib.suppress(OSError):    # It may end meanwhile.
                    names.append(open(f"/proc/self/task/{task}/comm").read().strip())
            assert names.count("reactor-0") == 4
    """).assert_outcomes(passed=9)
