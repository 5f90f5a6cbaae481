"""The plugin in a separate pytest."""


def test_the_fixtures_give_a_broker_and_a_topic_named_after_the_test(run_pytest):
    run_pytest("""
        import socket

        def test_sending(pylog_broker, pylog_topic):
            assert pylog_topic.name == "test_sending" and pylog_topic.partitions == 1
            socket.create_connection(("127.0.0.1", pylog_broker.port)).close()
            pylog_topic.append("a")
            pylog_topic.assert_records(["a"])
    """).assert_outcomes(passed=1)


def test_tests_share_a_broker_but_nothing_that_is_on_it(run_pytest):
    run_pytest("""
        ports = set()

        def _alone(pylog_broker):
            ports.add(pylog_broker.port)
            assert pylog_broker.topics() == []
            pylog_broker.create_topic("t").append("x")

        def test_one(pylog_broker):
            _alone(pylog_broker)

        def test_two(pylog_broker):
            _alone(pylog_broker)
            assert len(ports) == 1
    """).assert_outcomes(passed=2)


def test_broker_with_faults_is_not_reused(run_pytest):
    run_pytest("""
        import pytest
        ports = []

        @pytest.mark.parametrize("hours", [0, 1, 0, 0])
        def test_the_clock(pylog_broker, hours):
            assert abs(pylog_broker.clock.now_ms() / 1000 - __import__("time").time()) < 60
            ports.append(pylog_broker.port)
            pylog_broker.clock.advance(hours=hours)

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
        def test_settings(pylog_broker, pylog_topic):
            assert pylog_broker.settings == {"num.partitions": "4", "node.id": "7"}
            assert "pytest-of" in pylog_broker.directory
            assert pylog_topic.name == "wide" and pylog_topic.partitions == 3

        @pytest.mark.pylog_broker(own=True)
        def test_alone(pylog_broker, pylog_brokers):
            other = pylog_brokers.make({})
            assert other.port != pylog_broker.port
    """, "--strict-markers").assert_outcomes(passed=2)


def test_brokers_of_wider_scopes_keep_their_data(run_pytest):
    run_pytest("""
        def test_one(pylog_module_broker, pylog_session_broker):
            pylog_module_broker.create_topic("t")
            pylog_session_broker.create_topic("u")

        def test_two(pylog_module_broker, pylog_session_broker):
            assert pylog_module_broker.topics() == ["t"] and pylog_session_broker.topics() == ["u"]
    """).assert_outcomes(passed=2)


def test_failed_assertion_shows_the_difference_without_internal_code(run_pytest):
    result = run_pytest("""
        def test_wrong(pylog_topic):
            pylog_topic.append("a")
            pylog_topic.assert_records(["b"])
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

        def test_round_trip(pylog_producer, pylog_consumer, pylog_topic, pylog_make_consumer):
            pylog_producer.send(pylog_topic.name, b"a")
            pylog_producer.flush()
            assert [record.value for record in pylog_consumer.poll(20)] == [b"a"]
            other = pylog_make_consumer(pylog_topic, group_id="other")
            assert [record.value for record in other.poll(20)] == [b"a"]
            clients.extend([pylog_consumer, other])

        def test_next(pylog_broker):
            from pylog.client.errors import ClosedError
            import pytest
            for client in clients:
                with pytest.raises(ClosedError):
                    client.poll(0)
            assert pylog_broker.groups() == []
    """).assert_outcomes(passed=2)


def test_brokers_can_be_child_processes_by_an_option(run_pytest):
    run_pytest("""
        import os

        def test_pid(pylog_broker, pylog_topic):
            assert pylog_broker.pid != os.getpid()
            pylog_topic.append("a")
            pylog_topic.assert_records(["a"])
    """, "--pylog-broker=process").assert_outcomes(passed=1)


def test_client_left_open_does_not_disturb_the_next_test(run_pytest):
    run_pytest("""
        from pylog.client import Consumer

        ports, left = [], []

        def test_leaves_a_consumer(pylog_broker, pylog_topic):
            pylog_topic.append("x")
            left.append(Consumer(bootstrap_servers=pylog_broker.bootstrap, group_id="g",
                                 auto_offset_reset="earliest"))
            left[0].subscribe([pylog_topic.name])
            assert left[0].poll(20)
            ports.append(pylog_broker.port)

        def test_next(pylog_broker):
            assert pylog_broker.groups() == [] and pylog_broker.port not in ports
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

        def test_settings(wishes, pylog_broker):
            assert pylog_broker.settings["num.partitions"]

        def test_threads():
            names = []
            for task in os.listdir("/proc/self/task"):
                with contextlib.suppress(OSError):    # It may end meanwhile.
                    names.append(open(f"/proc/self/task/{task}/comm").read().strip())
            assert names.count("reactor-0") == 4
    """).assert_outcomes(passed=9)


def test_asyncio_clients_are_not_started(run_pytest):
    run_pytest("""
        import asyncio

        def test_round_trip(pylog_aio_producer, pylog_aio_consumer, pylog_topic):
            async def work():
                async with pylog_aio_producer as producer, pylog_aio_consumer as consumer:
                    await producer.send_and_wait(pylog_topic.name, "a")
                    await consumer.subscribe([pylog_topic.name])
                    return await consumer.poll(20)

            assert [record.value for record in asyncio.run(work())] == [b"a"]
    """).assert_outcomes(passed=1)


def test_the_cluster_fixture_starts_the_brokers_of_its_marker(run_pytest):
    run_pytest("""
        import pytest

        @pytest.mark.pylog_cluster(count=2, num_partitions=4)
        def test_cluster(pylog_cluster):
            assert list(pylog_cluster.brokers) == [1, 2]
            assert pylog_cluster[1].settings["num.partitions"] == "4"
    """, "--strict-markers").assert_outcomes(passed=1)


def test_short_names_warn_and_return_the_same_fixtures(run_pytest):
    result = run_pytest("""
        def test_names(broker, pylog_broker, topic, pylog_topic, make_producer):
            assert broker is pylog_broker and topic is pylog_topic
            assert make_producer().send_and_wait(topic.name, "a").offset == 0
    """)
    result.assert_outcomes(passed=1, warnings=3)
    result.stdout.fnmatch_lines([
        "*DeprecationWarning: the fixture broker is now named pylog_broker. To keep the short "
        "names, write pytest_plugins = *"])


def test_short_names_do_not_warn_where_a_project_chose_them(run_pytest, pytester):
    pytester.makeconftest('pytest_plugins = ["pylog.testing.short"]')
    run_pytest("""
        def test_names(broker, topic, producer, consumer, module_broker, session_broker):
            producer.send_and_wait(topic.name, "a")
            assert [record.value for record in consumer.poll(20)] == [b"a"]
    """, "-W", "error::DeprecationWarning").assert_outcomes(passed=1)


def test_every_short_name_is_that_of_a_fixture():
    from pylog.testing import plugin, short

    names = {name for name, value in vars(short).items()
             if type(value).__name__ == "FixtureFunctionDefinition"}
    assert len(names) == 11
    for name in names:
        assert hasattr(plugin, f"pylog_{name}")


def test_a_fixture_of_the_project_replaces_a_short_name(run_pytest, pytester):
    pytester.makeconftest("""
        import pytest

        @pytest.fixture
        def broker():
            return "of the project"
    """)
    result = run_pytest("""
        def test_name(broker):
            assert broker == "of the project"
    """)
    result.assert_outcomes(passed=1, warnings=0)
