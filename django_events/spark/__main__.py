"""`python -m django_events.spark PATH.zip`: what Spark's executors need of this package, for --py-files."""

import ast
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parents[1]
ROOT = HERE.parent


def bundle(path: Path) -> int:
    """Write the archive; returns how many files are in it."""
    found = sorted(_with_imports([*(HERE / "spark").rglob("*.py"), *(ROOT / "pyspark_django_events").rglob("*.py")]))
    found += sorted({beside for module in found if (beside := module.with_suffix(".sql")).is_file()})
    found.append(HERE / "sql" / "shared.sql")
    found += sorted(
        path for path in (HERE / "spark").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in found:
            archive.write(file, file.relative_to(ROOT))
    return len(found)


def _with_imports(modules: list[Path]) -> set[Path]:
    """These modules, the packages that they are in, and what of this package any of them imports when it runs."""
    found: set[Path] = set()
    left = list(modules)
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += [
                folder / "__init__.py" for folder in module.parents if folder.is_relative_to(ROOT) and folder != ROOT
            ]
            left += [
                file for name in _imported(ast.parse(module.read_text(encoding="utf-8"))) for file in _file_of(name)
            ]
    return found


def _imported(node: ast.AST) -> Iterator[str]:
    """The modules that an import may name; those for types alone are not there when it runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module
            yield from (f"{child.module}.{name.name}" for name in child.names)
        yield from _imported(child)


def _file_of(module: str) -> Iterator[Path]:
    if module.split(".")[0] == HERE.name:
        place = ROOT.joinpath(*module.split("."))
        yield from (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file())


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".zip"):
        sys.exit("Say where the archive goes: python -m django_events.spark PATH.zip")
    target = Path(sys.argv[1])
    sys.stdout.write(f"{target} holds {bundle(target)} files, for spark-submit --py-files.\n")
