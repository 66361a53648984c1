"""The commands and their help. Each command's module imports the library when it runs, so that help comes at once."""

import typer

from assay import __version__
from assay.cli import bench, check, claims, compare, lists, lm_eval

UsageError = typer.BadParameter.__bases__[0]  # what is raised for any words that are not understood

app = typer.Typer(
    help="Takes Transformers apart: one Transformer made of named parts, each published mechanism measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks; may stand anywhere in the command."),
) -> None:
    if version:
        print(f"assay {__version__}")
        raise typer.Exit


app.command("compare")(compare.compare)
app.command("report")(compare.report)
app.command("bench")(bench.bench)
app.command("lm-eval")(lm_eval.lm_eval)
app.command("check")(check.check)
app.command("parts")(lists.parts)
app.command("tasks")(lists.tasks)
app.command("models")(lists.models)
app.command("claims")(claims.claims)
app.command("claim")(claims.claim)
