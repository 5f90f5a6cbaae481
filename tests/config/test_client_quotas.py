"""The effective quota of a client; windows and tokens on a virtual clock."""

import math

import pytest

from pylog._native.server.quotas import FETCH, PRODUCE, REQUEST, Quotas
from pylog.config import Settings
from pylog.config.client_quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
    entity,
    limit,
    packed,
)

# From the most specific entity to the least, with the key of the shared counter.
PRECEDENCE = (
    ({USER: "u", CLIENT_ID: "c"}, ("u", "c")), ({USER: "u", CLIENT_ID: None}, ("u", "c")),
    ({USER: "u"}, ("u", "")), ({USER: None, CLIENT_ID: "c"}, ("u", "c")),
    ({USER: None, CLIENT_ID: None}, ("u", "c")), ({USER: None}, ("u", "")),
    ({CLIENT_ID: "c"}, ("", "c")), ({CLIENT_ID: None}, ("", "c")),
)


# ---- effective quota ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_entity_decides(first):
    quotas = {entity(parts.items()): {PRODUCER_BYTE_RATE: float(number)}
              for number, (parts, _) in enumerate(PRECEDENCE) if number >= first}
    assert limit(quotas, PRODUCER_BYTE_RATE, "u", "c") == (first, *PRECEDENCE[first][1])


def test_each_quota_type_selects_its_entity():
    quotas = {entity({USER: "u"}.items()): {REQUEST_PERCENTAGE: 5.0},
              entity({CLIENT_ID: "c"}.items()): {PRODUCER_BYTE_RATE: 7.0}}
    assert limit(quotas, PRODUCER_BYTE_RATE, "u", "c") == (7.0, "", "c")
    assert limit(quotas, REQUEST_PERCENTAGE, "u", "c") == (5.0, "u", "")
    assert limit(quotas, CONTROLLER_MUTATION_RATE, "u", "c") is None


def test_other_clients_and_addresses_do_not_count():
    quotas = {entity({USER: "v", CLIENT_ID: "c"}.items()): {PRODUCER_BYTE_RATE: 1.0},
              entity({CLIENT_ID: "d"}.items()): {PRODUCER_BYTE_RATE: 1.0},
              entity({IP: None}.items()): {PRODUCER_BYTE_RATE: 1.0}}
    assert limit(quotas, PRODUCER_BYTE_RATE, "u", "c") is None


# ---- windows ------------------------------------------------------------------------------------


def _one(samples=11, window_ms=1000, kind=PRODUCE, rate=1000.0):
    quotas = Quotas(samples, window_ms)
    quotas.void(True)
    limits = [None] * 3
    limits[kind] = (b"entity", rate)
    quotas.install(0, b"c", tuple(limits), 0)
    return quotas


def test_first_burst_may_use_all_previous_windows():
    quotas = _one()
    assert quotas.charge(0, b"c", PRODUCE, 10_000, 0) == 0
    # One byte per second over the quota, in ten seconds of 1000: ten milliseconds.
    assert quotas.charge(0, b"c", PRODUCE, 10, 0) == 10
    assert quotas.charge(0, b"c", PRODUCE, 10_010, 0) == 10_020


def test_client_that_waits_its_throttle_time_is_within_the_limit_again():
    quotas = _one()
    now_ms, sent = 0, 0
    for _ in range(200):
        sent += 3_000
        now_ms += quotas.charge(0, b"c", PRODUCE, 3_000, now_ms)
    assert 0.95 * 1000 <= sent / (now_ms / 1000) <= 1.25 * 1000


def test_samples_are_forgotten_when_they_are_as_old_as_all_windows():
    quotas = _one()
    assert quotas.charge(0, b"c", PRODUCE, 30_000, 0) == 20_000
    assert quotas.charge(0, b"c", PRODUCE, 1, 10_999) > 0
    assert quotas.charge(0, b"c", PRODUCE, 1, 11_000) == 0


def test_request_time_is_throttled_for_one_window_at_most():
    assert _one(kind=REQUEST).charge(0, b"c", REQUEST, 1e9, 0) == 1000
    assert _one(kind=REQUEST, window_ms=3000).charge(0, b"c", REQUEST, 1e9, 0) == 3000


def test_throttled_fetch_is_not_counted():
    quotas = _one(kind=FETCH)
    assert quotas.charge(0, b"c", FETCH, 9_000, 0) == 0
    for _ in range(5):
        assert quotas.charge(0, b"c", FETCH, 2_000, 0) == 1_000
    assert quotas.charge(0, b"c", FETCH, 1_000, 0) == 0


def test_unthrottled_usage_counts_above_the_limit_too():
    quotas = _one(kind=FETCH)
    assert quotas.charge(0, b"c", FETCH, 9_000, 0, True) == 0
    waits = [quotas.charge(0, b"c", FETCH, 2_000, 0, True) for _ in range(2)]
    assert 0 < waits[0] < waits[1]


def test_an_answer_that_no_window_can_hold_passes_when_nothing_was_fetched():
    quotas = _one(kind=FETCH)
    assert quotas.charge(0, b"c", FETCH, 50_000, 0) == 0
    assert quotas.charge(0, b"c", FETCH, 50_000, 10_000) > 0
    assert quotas.charge(0, b"c", FETCH, 50_000, 11_000) == 0


def test_fetch_is_limited_by_the_windows_capacity():
    assert _one(kind=FETCH).fetch_max(0, b"c", 1 << 30) == 10_000
    assert _one(kind=FETCH, rate=1e12).fetch_max(0, b"c", 1 << 30) == 1 << 30
    assert _one(kind=PRODUCE).fetch_max(0, b"c", 1 << 30) == 1 << 30
    assert _one(samples=1, kind=FETCH).fetch_max(0, b"c", 1 << 30) == 0


def test_non_numeric_limits_do_not_throttle():
    for rate in (math.inf, math.nan):
        assert _one(rate=rate).charge(0, b"c", PRODUCE, 1e12, 0) == 0


class Rate:
    """A simple model of Kafka's rate: the samples as a list, the newest last."""

    def __init__(self, samples: int, window_ms: int, bound: float):
        self.samples, self.window_ms, self.bound = samples, window_ms, bound
        self.rows = []

    def charge(self, value: float, now_ms: int) -> int:
        if not self.rows or now_ms - self.rows[-1][0] >= self.window_ms:
            self.rows.append([now_ms, now_ms, 0.0])
            self.rows = self.rows[-(self.samples + 1):]
        self.rows[-1][1] = now_ms
        self.rows[-1][2] += value
        live = [row for row in self.rows if now_ms - row[1] < self.samples * self.window_ms]
        elapsed = now_ms - min(row[0] for row in live)
        missing = self.samples - 1 - elapsed // self.window_ms
        span_ms = max(1, elapsed + max(0, missing) * self.window_ms)
        rate = sum(row[2] for row in live) * 1000 / span_ms
        return 0 if rate <= self.bound else int((rate - self.bound) / self.bound * span_ms + 0.5)


@pytest.mark.parametrize("samples,window_ms", [(11, 1000), (1, 500), (2, 100), (30, 2000)])
def test_rates_agree_with_a_naive_model(samples, window_ms, random_source):
    bound = random_source.choice([1.0, 1000.0, 1234.5])
    quotas, model, now_ms = _one(samples, window_ms, rate=bound), Rate(samples, window_ms, bound), 7
    for _ in range(3000):
        now_ms += random_source.choice([0, 0, 1, 10, window_ms // 2, window_ms, 3 * window_ms,
                                        random_source.randrange(1, 2 * samples * window_ms)])
        value = float(random_source.randrange(1, int(3 * bound * samples) + 2))
        assert quotas.charge(0, b"c", PRODUCE, value, now_ms) == model.charge(value, now_ms)


# ---- table --------------------------------------------------------------------------------------


def test_clients_of_one_entity_share_its_rate():
    quotas = Quotas(11, 1000)
    quotas.void(True)
    for client_id, key in ((b"a", b"shared"), (b"b", b"shared"), (b"c", b"own")):
        quotas.install(0, client_id, ((key, 1000.0), None, None), 0)
    assert quotas.charge(0, b"a", PRODUCE, 10_000, 0) == 0
    assert quotas.charge(0, b"b", PRODUCE, 10, 0) > 0
    assert quotas.charge(0, b"c", PRODUCE, 10, 0) == 0
    assert quotas.count() == (3, 2)


def test_change_resets_clients_but_keeps_their_usage():
    quotas = _one()
    assert quotas.charge(0, b"c", PRODUCE, 15_000, 0) == 5_000
    quotas.void(True)
    assert quotas.charge(0, b"c", PRODUCE, 1, 0) is None
    quotas.install(0, b"c", ((b"entity", 2000.0), None, None), 0)
    assert quotas.charge(0, b"c", PRODUCE, 1_000, 0) == 0
    assert quotas.charge(1, b"c", PRODUCE, 1, 0) is None


def test_clients_that_come_and_go_do_not_fill_the_table():
    quotas = Quotas(11, 1000)
    quotas.void(True)
    for number in range(100_000):
        name = str(number).encode()
        quotas.install(0, name, ((name, 1.0), None, None), number)
        quotas.charge(0, name, PRODUCE, 1, number)
    clients, rates = quotas.count()
    # Only rates used within the last eleven seconds remain.
    assert clients <= 2048 and rates <= 2 * 11_000 + 2048, (clients, rates)


# ---- the broker's quotas ------------------------------------------------------------------------


class Clock:
    def __init__(self):
        self.now_ms = 5_000_000

    def __call__(self) -> int:
        return self.now_ms * 1_000_000


def _quotas(clock, **settings) -> ClientQuotas:
    return ClientQuotas(Settings({key.replace("_", "."): str(value)
                                  for key, value in settings.items()}), clock)


def _mutating(rate=2.0, **settings):
    clock = Clock()
    quotas = _quotas(clock, **settings)
    quotas.take({entity({CLIENT_ID: "c"}.items()): {CONTROLLER_MUTATION_RATE: rate}})
    return clock, quotas


def test_mutations_may_burst_once_and_then_follow_their_rate():
    clock, quotas = _mutating()
    account = quotas.mutations(0, "c", True)
    # 22 tokens are available; the last request may overdraw
    assert account.charge(20) and account.charge(7)
    assert not account.charge(1)
    assert account.throttle_ms() == 2_500
    clock.now_ms += 500
    assert account.throttle_ms() == 2_000
    clock.now_ms += 1_999
    assert not quotas.mutations(0, "c", True).charge(1)
    clock.now_ms += 2
    again = quotas.mutations(0, "c", True)
    assert again.charge(1) and again.throttle_ms() == 0


def test_permissive_quota_accepts_and_returns_a_throttle_time():
    clock, quotas = _mutating()
    account = quotas.mutations(0, "c", False)
    assert account.charge(22) and account.throttle_ms() == 0
    assert account.charge(4) and account.throttle_ms() == 2_000
    assert quotas.mutations(0, "c", False).charge(2)


def test_bucket_size_equals_the_windows_total():
    clock, quotas = _mutating(1.0, controller_quota_window_num=3,
                              controller_quota_window_size_seconds=2)
    clock.now_ms += 1_000_000
    account = quotas.mutations(0, "c", True)
    assert account.charge(6) and account.charge(1) and not account.charge(1)


def test_clients_without_a_mutation_quota_have_no_account():
    _, quotas = _mutating()
    assert quotas.mutations(0, "d", True) is None and quotas.mutations(0, None, True) is None
    quotas.take({})
    assert quotas.mutations(0, "c", True) is None


def test_changed_rate_keeps_the_remaining_tokens():
    clock, quotas = _mutating()
    assert quotas.mutations(0, "c", True).charge(24)
    quotas.take({entity({CLIENT_ID: "c"}.items()): {CONTROLLER_MUTATION_RATE: 4.0}})
    account = quotas.mutations(0, "c", True)
    assert not account.charge(1) and account.throttle_ms() == 500


def test_buckets_of_inactive_clients_are_removed():
    clock = Clock()
    quotas = _quotas(clock)
    quotas.take({entity({CLIENT_ID: None}.items()): {CONTROLLER_MUTATION_RATE: 1.0}})
    for number in range(25_000):
        clock.now_ms += 10
        quotas.mutations(0, str(number), True).charge(1)
    assert len(quotas._tokens) <= 10_000


def test_time_is_charged_to_clients_that_the_reactors_do_not_know_yet():
    quotas = _quotas(Clock())
    quotas.take({entity({USER: None}.items()): {REQUEST_PERCENTAGE: 10.0}})
    assert quotas.timed
    assert quotas.charge_time(0, b"c", 1_000_000_000) == 0  # one second of the hundred in ten
    assert quotas.charge_time(0, b"d", 10_000_000_000) == 1000
    quotas.take({})
    assert not quotas.timed


def test_byte_quota_ignores_other_request_types_and_addresses():
    quotas = _quotas(Clock())
    quotas.take({entity({IP: "127.0.0.1"}.items()): {"connection_creation_rate": 1.0},
                 entity({USER: "ANONYMOUS"}.items()): {PRODUCER_BYTE_RATE: 10.0}})
    assert not quotas.timed
    quotas.install(0, b"c")
    assert quotas.native.charge(0, b"c", PRODUCE, 200, 0) > 0
    assert quotas.native.charge(0, b"c", FETCH, 1e12, 0) == 0


# ---- addresses ----------------------------------------------------------------------------------

HERE, THERE = packed("127.0.0.1"), packed("2001:db8::1")


def test_connections_per_address_are_limited_without_rejected_ones():
    clock = Clock()
    quotas = _quotas(clock)
    quotas.take({entity({IP: "127.0.0.1"}.items()): {CONNECTION_CREATION_RATE: 2.0}})
    began = [quotas.native.connection(HERE, 0) for _ in range(40)]
    # Twenty in ten seconds; after that each waits half a second.
    assert began == [0] * 20 + [500] * 20
    assert quotas.native.connection(HERE, 11_000) == 0
    assert quotas.native.connection(THERE, 0) == 0


def test_a_default_limits_every_other_address_by_itself():
    quotas = _quotas(Clock())
    quotas.take({entity({IP: None}.items()): {CONNECTION_CREATION_RATE: 1.0},
                 entity({IP: "127.0.0.1"}.items()): {CONNECTION_CREATION_RATE: 100.0}})
    assert not any(quotas.native.connection(HERE, 0) for _ in range(500))
    for address in (THERE, packed("10.0.0.1")):
        assert [quotas.native.connection(address, 0) > 0 for _ in range(12)] == [False] * 10 + [
            True] * 2
    quotas.take({})
    assert quotas.native.connection(THERE, 0) == 0


def test_rejected_connection_waits_at_most_one_window():
    quotas = _quotas(Clock(), quota_window_num=2)
    quotas.take({entity({IP: None}.items()): {CONNECTION_CREATION_RATE: 1.0}})
    quotas.native.set_addresses({}, 0.01)
    assert quotas.native.connection(HERE, 0) == 1000


def test_quotas_of_host_names_apply_once_resolved():
    quotas = ClientQuotas(Settings({}), Clock())
    quotas.take({entity({IP: name}.items()): {CONNECTION_CREATION_RATE: 0.01}
                 for name in ("here", "nowhere", "2001:db8::1")})
    assert quotas.unresolved() == ["here", "nowhere"]
    assert quotas.native.connection(THERE, 0) > 0 and quotas.native.connection(HERE, 0) == 0
    quotas.take_hosts({"here": "127.0.0.1", "nowhere": None})
    assert quotas.native.connection(HERE, 0) > 0
    assert quotas.unresolved() == ["nowhere"]  # The name may be resolvable later.


def test_quota_is_measured_over_the_configured_windows():
    entity_ = entity({USER: None}.items())
    waits = []
    for settings in ({}, {"quota_window_num": 3, "quota_window_size_seconds": 2}):
        quotas = _quotas(Clock(), **settings)
        quotas.take({entity_: {REQUEST_PERCENTAGE: 10.0}})
        waits.append(quotas.charge_time(0, b"c", 1_000_000_000))
    # One second is 10 % of ten windows of 1 s, but 25 % of two windows of 2 s.
    assert waits == [0, 2000]
