"""The container image and the Kubernetes manifest agree with each other and with brokerd."""

import json
import re
import shlex
from pathlib import Path

import pytest

from pylog.config import Settings
from pylog.monitor import server
from release import container

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "release/Containerfile").read_text()
KUBERNETES = ("1.30", "1.34")


def instruction(name: str) -> str:
    """Return the arguments of an instruction of the Containerfile."""
    joined = IMAGE.replace("\\\n", " ")
    return re.search(rf"^{name} (.+)$", joined, re.M)[1]


@pytest.fixture(scope="module")
def manifest():
    """Return the objects of the manifest by kind."""
    documents = yaml.safe_load_all((ROOT / "docs/kubernetes/pylog.yaml").read_text())
    return {document["kind"]: document for document in documents}


@pytest.fixture
def pod(manifest):
    return manifest["StatefulSet"]["spec"]["template"]["spec"]


def overrides(words: list[str]) -> Settings:
    assert words[::2] == ["--override"] * (len(words) // 2)
    return Settings.load(None, [word.replace("$(POD_NAME).pylog.$(POD_NAMESPACE)", "pylog-0")
                                for word in words[1::2]])


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifest_is_valid_for_kubernetes(manifest, version):
    for document in manifest.values():
        kubernetes_validate.validate(document, version, strict=True)


def test_settings_of_image_and_manifest_are_valid(pod):
    for words in (json.loads(instruction("CMD")), pod["containers"][0]["args"]):
        settings = overrides(words)
        assert list(settings.log_dirs) == ["/data/logs"] and settings.reaches_others
        assert settings["metrics.listener"] == "0.0.0.0:9644"


def test_ports_and_user_of_image_and_manifest_agree(manifest, pod):
    [broker] = pod["containers"]
    ports = {port["containerPort"] for port in broker["ports"]}
    assert ports == {int(port) for port in instruction("EXPOSE").split()}
    assert {port["port"] for port in manifest["Service"]["spec"]["ports"]} == ports
    user, group = map(int, instruction("USER").split(":"))
    security = pod["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (
        user, group, group)
    assert f"--uid {user} --gid {group}" in container.INSTALLATION


def test_probes_request_paths_that_brokerd_serves(pod):
    [broker] = pod["containers"]
    paths = {broker[name]["httpGet"]["path"]
             for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths <= set(server.PAGES)


def test_image_checks_its_health_and_stops_cleanly():
    assert instruction("STOPSIGNAL") == "SIGTERM"
    check = instruction("HEALTHCHECK").partition("CMD ")[2]
    assert json.loads(check) == ["pylog", "health"]


def test_volumes_of_image_and_manifest_are_the_same(pod):
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {instruction("VOLUME"), "/tmp"}


@pytest.mark.parametrize("name", [
    "pylog_broker-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "pylog_broker-0.1.0-cp313-cp313-musllinux_1_2_x86_64.whl", "other.whl"])
def test_wheel_of_another_python_or_system_is_rejected(tmp_path, name):
    with pytest.raises(SystemExit, match="the image needs the wheel for Python 3.13"):
        container.built(tmp_path / name)


def test_buildah_uses_a_separate_storage():
    command = shlex.join(container.buildah("images"))
    assert f"--root {container.FOLDER / 'storage'}" in command
