"""`pylog completion`: print the shell script that completes commands, options, topics and groups.

Owns: nothing.
Invariants: names of topics and groups are requested on completion, from the broker on the command
  line, with a timeout of two seconds.
Source: click.shell_completion.
"""

from __future__ import annotations

import click

HOW = {
    "bash": 'eval "$(pylog completion bash)"     # in ~/.bashrc',
    "zsh": 'eval "$(pylog completion zsh)"      # in ~/.zshrc',
    "fish": "pylog completion fish | source     # in ~/.config/fish/config.fish",
}


@click.command("completion", epilog="  ".join(f"\b\n{line}\n" for line in HOW.values()))
@click.argument("shell", type=click.Choice(sorted(HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell. Evaluate it in the shell's startup file."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    source = kind(ctx.find_root().command, {}, "pylog", "_PYLOG_COMPLETE")
    click.echo(source.source_template % source.source_vars())


COMMANDS = {"completion": completion}
