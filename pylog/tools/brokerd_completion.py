"""The shell scripts that complete the arguments of `brokerd`: commands, options and settings.

Owns: nothing.
Invariants: a script contains all names, so completion starts no process; other arguments complete
  to files.
Source: bash's `complete`, zsh's `compdef`, fish's `complete`.
"""

from __future__ import annotations

_BASH = r"""_brokerd_completion() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    case $previous in
    --override)
        compopt -o nospace 2>/dev/null
        COMPREPLY=($(compgen -S = -W "%(settings)s" -- "$word")) ;;
    explain) COMPREPLY=($(compgen -W "%(settings)s" -- "$word")) ;;
    config) COMPREPLY=($(compgen -W "explain list" -- "$word")) ;;
    completion) COMPREPLY=($(compgen -W "bash fish zsh" -- "$word")) ;;
    *)
        if [[ $word == -* ]]; then
            COMPREPLY=($(compgen -W "%(options)s" -- "$word"))
        elif [[ $COMP_CWORD == 1 ]]; then
            COMPREPLY=($(compgen -W "%(commands)s" -- "$word"))
        fi ;;
    esac
}
complete -o default -F _brokerd_completion brokerd
"""

_ZSH = r"""_brokerd() {
    local -a commands options settings
    commands=(%(described_commands)s)
    options=(%(described_options)s)
    settings=(%(settings)s)
    case ${words[CURRENT - 1]} in
    --override) compadd -S = -a settings; return ;;
    explain) compadd -a settings; return ;;
    config) compadd explain list; return ;;
    completion) compadd bash fish zsh; return ;;
    esac
    if [[ ${words[CURRENT]} == -* ]]; then
        _describe option options
    else
        (( CURRENT == 2 )) && _describe command commands
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _brokerd brokerd
"""

_FISH = r"""set -g __brokerd_settings %(settings)s
%(described_commands)s
%(described_options)s
complete -c brokerd -n "__fish_seen_subcommand_from config" -f -a "explain list"
complete -c brokerd -n "__fish_seen_subcommand_from explain" -f -a "$__brokerd_settings"
complete -c brokerd -n "__fish_seen_subcommand_from completion" -f -a "bash fish zsh"
complete -c brokerd -l override -x -a "$__brokerd_settings"
"""

TEMPLATES = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str, commands: dict[str, str], options: dict[str, str],
           settings: list[str]) -> str:
    """Return the script for a shell. commands, options: their names with one line about each."""
    described_commands, described_options = _described(shell, commands, options)
    return TEMPLATES[shell] % {
        "commands": " ".join(commands), "options": " ".join(options),
        "settings": " ".join(settings), "described_commands": described_commands,
        "described_options": described_options}


def _described(shell: str, commands: dict[str, str], options: dict[str, str]) -> tuple[str, str]:
    if shell == "fish":
        first = "complete -c brokerd -n __fish_use_subcommand"
        return ("\n".join(f"{first} -a {name} -d {_quoted(text)}"
                          for name, text in commands.items()),
                "\n".join(f"complete -c brokerd -l {name.removeprefix('--')} -d {_quoted(text)}"
                          for name, text in options.items() if name != "--override"))
    first, second = (" ".join(_quoted(f"{name}:{text}") for name, text in rows.items())
                     for rows in (commands, options))
    return first, second


def _quoted(text: str) -> str:
    """Return a text in single quotes, for zsh and fish. Both end a quoted text at an apostrophe."""
    return "'" + text.replace("'", "’") + "'"
