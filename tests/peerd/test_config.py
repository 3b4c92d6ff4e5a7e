"""Settings: which layer wins, and what a wrong value is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerd.config import KEYS, Config, load_config, unknown_variables, write_settings
from peerd.errors import Exit, PeerError
from protocols.sharing.capacity import Capacities


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "peerd.toml"


def refusal(file: Path | None = None, environ: dict[str, str] | None = None, **flags: object) -> PeerError:
    with pytest.raises(PeerError) as caught:
        load_config(file, environ or {}, flags)
    assert caught.value.exit_code == Exit.MISUSE
    return caught.value


def test_without_any_layer_the_defaults_hold(file: Path):
    assert load_config(file, {}, {}) == Config()


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(file: Path):
    file.write_text('host = "10.0.0.1"\nport = 1\nlog_level = "error"\n')
    environ = {"PEER_PORT": "2", "PEER_LOG_LEVEL": "debug"}
    config = load_config(file, environ, {"log_level": "warning", "advertise": None, "seeds": ()})
    assert (config.host, config.port, config.log_level, config.log_format) == ("10.0.0.1", 2, "warning", "console")
    assert config.origin("host") == f"{file}, line 1"
    assert config.origin("port") == "PEER_PORT"
    assert config.origin("log_level") == "--log-level"
    assert config.origin("log_format") == "the default"


def test_every_setting_can_be_given_in_the_file_and_as_a_variable(file: Path):
    texts = {
        "host": "::1",
        "port": "7401",
        "advertise": "10.0.0.5",
        "advertise_seed": "peer1:7400",
        "seeds": "10.0.0.1:7400, [::1]:7401",
        "name": "plant",
        "log_level": "debug",
        "log_format": "json",
        "http_host": "0.0.0.0",
        "http_port": "0",
        "found": "1",
        "token_file": "/network/token",
        "spark": "warm",
        "spark_master": "spark://10.0.0.9:7077",
        "spark_memory": "2g",
        "cpu_share": "80%",
        "uplink": "1mbit",
        "downlink": "2.5gbit",
        "host_nothing": "true",
        "delays": "10.0.0.1:7400=20ms, [::1]:7401=0.5s",
        "quota_connections": "10",
        "quota_streams": "20",
        "quota_subscriptions": "30",
        "quota_queries": "40",
        "quota_state_rows": "1_000",
        "quota_tuples_per_s": "500",
        "quota_bytes_per_s": "0",
        "quota_peer_subgraphs": "5",
        "quota_peer_joins": "6",
        "quota_peer_subscriptions": "7",
    }
    assert tuple(texts) == KEYS
    from_variables = load_config(None, {f"PEER_{key.upper()}": text for key, text in texts.items()}, {})
    write_settings(
        file,
        {**texts, "port": 7401, "http_port": 0, "found": True, "seeds": ("10.0.0.1:7400", "[::1]:7401")},
    )
    from_file = load_config(file, {}, {})
    for key in KEYS:
        assert getattr(from_file, key) == getattr(from_variables, key), key
    assert from_file.delays == ((("10.0.0.1", 7400), 20.0), (("::1", 7401), 500.0))
    assert from_file.seeds == (("10.0.0.1", 7400), ("::1", 7401))


def test_an_empty_variable_says_nothing():
    assert load_config(None, {"PEER_PORT": "", "PEER_SEEDS": ""}, {}) == Config()


def test_an_unknown_key_is_answered_with_file_line_and_the_nearest_key(file: Path):
    file.write_text('# my peer\nhost = "127.0.0.1"\n\nprot = 7400\n')
    error = refusal(file)
    assert error.error == f'{file}, line 4, key "prot": there is no such setting'
    assert error.hint is not None
    assert error.hint.startswith('Did you mean "port"?')


def test_a_table_is_an_unknown_key_too(file: Path):
    file.write_text("port = 1\n[peer]\nport = 7400\n")
    assert refusal(file).error == f'{file}, line 2, key "peer": there is no such setting'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('port = "http"', 'it must be a port, a number from 0 to 65535, not "http"'),
        ("port = 65536", "it must be a port, a number from 0 to 65535, not 65536"),
        ("port = -1", "it must be a port, a number from 0 to 65535, not -1"),
        ("port = true", "it must be a port, a number from 0 to 65535, not True"),
        ("host = 7", "it must be a text, not 7"),
        ('log_level = "loud"', 'it must be one of debug, info, warning, error, not "loud"'),
        ("seeds = 7400", 'it must be a list of addresses, like ["10.0.0.5:7400"], not 7400'),
        ('seeds = ["10.0.0.5:x"]', "it must be an address, host:port or [ipv6]:port, not ['10.0.0.5:x']"),
        ('found = "perhaps"', 'it must be true or false, not "perhaps"'),
        (f'name = "{"n" * 65}"', f'it must be a name of 1 to 64 printable characters, not "{"n" * 65}"'),
    ],
)
def test_a_wrong_value_is_answered_with_file_line_and_key(file: Path, line: str, complaint: str):
    file.write_text(f"\n{line}\n")
    key = line.split(" ", 1)[0]
    assert refusal(file).error == f'{file}, line 2, key "{key}": {complaint}'


def test_a_wrong_variable_or_flag_is_named():
    assert refusal(environ={"PEER_PORT": "x"}).error.startswith("PEER_PORT: it must be a port")
    assert refusal(http_port="x").error.startswith("--http-port: it must be a port")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("host = 127.0.0.1\n", 'line 1, key "host"'),
        ('host = "a"\nport 7400\n', 'line 2, key "port"'),
        ("port = 1\nport = 2\n", 'line 2, key "port"'),
        ("port =", 'line 1, key "port"'),
    ],
)
def test_what_is_not_toml_is_answered_with_file_line_and_key(file: Path, text: str, place: str):
    file.write_text(text)
    assert refusal(file).error.startswith(f"{file}, {place}: this is not TOML: ")


@given(text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r"), max_size=60))
def test_whatever_the_file_says_the_answer_is_a_configuration_or_a_refusal(tmp_path_factory, text: str):
    file = tmp_path_factory.mktemp("any") / "peerd.toml"
    file.write_text(text, encoding="utf-8")
    try:
        answer: Config | PeerError = load_config(file, {}, {})
    except PeerError as error:
        answer = error
    assert isinstance(answer, Config) or (answer.exit_code == Exit.MISUSE and str(file) in answer.error)


def test_a_file_named_by_hand_must_exist(file: Path):
    with pytest.raises(PeerError) as caught:
        load_config(file, {}, {}, must_exist=True)
    assert caught.value.exit_code == Exit.MISUSE


def test_a_misspelt_variable_is_noticed_and_a_foreign_one_is_not():
    environ = {"PEER_PROT": "1", "PEER_DATA_DIR": "x", "PEER_SERVICE_HOST": "10.0.0.1", "PEERS": "2"}
    assert unknown_variables(environ) == ["PEER_PROT is not a setting; did you mean PEER_PORT?"]


def test_the_http_port_follows_the_port_unless_set():
    assert Config().http_port_for(7400) == 8400
    assert Config().http_port_for(65000) == 64000
    assert Config(http_port=0).http_port_for(7400) == 0


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("cpu_share", "0", "it must be a share of the cores above 0 and at most 1, like 0.8 or 80%"),
        ("cpu_share", "-0.5", "it must be a share"),
        ("cpu_share", "120%", "it must be a share"),
        ("cpu_share", "abc", "it must be a share"),
        ("uplink", "0", "it must be bits per second, 64 kbit or more, like 500kbit, 1mbit or 2.5gbit"),
        ("uplink", "0mbit", "it must be bits per second"),
        ("uplink", "-1mbit", "it must be bits per second"),
        ("downlink", "abc", "it must be bits per second"),
        ("downlink", "1e9mbit", "it must be bits per second"),
        ("host_nothing", "perhaps", "it must be true or false"),
    ],
)
def test_a_capacity_of_nothing_or_nonsense_is_refused(file: Path, key: str, value: str, problem: str):
    refused = refusal(environ={f"PEER_{key.upper()}": value})
    assert str(refused).startswith(f"error: PEER_{key.upper()}: {problem}")
    assert str(refused).endswith(f', not "{value}"')
    file.write_text(f"{key} = 0\n" if key != "host_nothing" else "host_nothing = 2\n")
    assert f'key "{key}": it must be' in str(refusal(file))


def test_what_a_peer_may_use_is_told_to_its_machines():
    config = load_config(None, {"PEER_UPLINK": "1mbit"}, {"cpu_share": "10%", "host_nothing": "true"})
    assert config.capacities(4) == Capacities(0.1, 125_000.0, None, hosts_others=False, cores=4)
    assert Config().capacities(4) == Capacities(cores=4)
