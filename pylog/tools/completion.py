"""`pylog completion`: the script that teaches a shell the commands, options, topics and groups.

Owns: nothing.
Invariants: (1) names of topics and groups are asked for when they are completed, from the broker
  that the line names, and for two seconds at most.
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
    """Print the completion script for a shell, to be evaluated by it."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    source = kind(ctx.find_root().command, {}, "pylog", "_PYLOG_COMPLETE")
    click.echo(source.source_template % source.source_vars())


COMMANDS = {"completion": completion}
