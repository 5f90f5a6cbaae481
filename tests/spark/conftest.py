"""One Spark session for all tests here: a JVM takes longer to start than most tests to run."""

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from spark.session import SetupError, session

    try:
        made = session("tests", master="local[2]", settings={
            "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))})
    except SetupError as missing:
        pytest.fail(str(missing))
    yield made
    made.stop()
