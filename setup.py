"""Builds the native pass: one shared library with a plain C interface, loaded through ctypes.

It needs a C++17 compiler of the gcc or clang kind and nothing else, not even Python's headers. Without one the install
succeeds all the same, says so, and torch does the work where it is installed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

NATIVE = Path("src/foredraft/native")
COMMON = (
    "-O3", "-std=c++17", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off",
    "-fvisibility=hidden", "-pthread"
)  # fmt: skip
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512_VNNI = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
AVX512 = (*AVX512_VNNI, "-mavx512bf16")
TIERS = {  # source -> the flags that only it may be compiled with
    "tier_avx2.cpp": AVX2,
    "tier_avx512.cpp": AVX512,
    "tier_amx.cpp": (*AVX512, "-mamx-tile", "-mamx-bf16"),
    "quantised_avx2.cpp": AVX2,
    "quantised_avx_vnni.cpp": (*AVX2, "-mavxvnni"),
    "quantised_avx512.cpp": AVX512_VNNI,
    "quantised_amx.cpp": (*AVX512_VNNI, "-mamx-tile", "-mamx-int8"),
}
FAULTS = (BaseError, CompileError, LinkError, OSError)
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


class BuildNative(build_ext):
    """Compiles each source with its own flags. A tier whose flags the compiler does not take is left out, and said."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return a name without Python's ABI: there is none in the library."""
        return str(Path(*fullname.split("."))) + SUFFIX

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return what the sources export by themselves, without PyInit."""
        return list(ext.export_symbols)

    def run(self) -> None:
        """Build, or say why not."""
        try:
            super().run()
        except FAULTS as fault:
            self._missing(fault)

    def build_extension(self, ext: Extension) -> None:
        """Build one library, or say why not."""
        try:
            self._build(ext)
        except FAULTS as fault:
            self._missing(fault)

    def _build(self, ext: Extension) -> None:
        compiler: Any = self.compiler
        if compiler.compiler_type == "msvc":
            raise CompileError("MSVC is not supported yet: install clang or gcc (MinGW)")
        self.mkpath(self.build_temp)
        self._taken(())  # a compiler that cannot compile nothing is missing, and this says so in one line
        with ThreadPoolExecutor() as pool:
            objects = [name for made in pool.map(self._compile, ext.sources) for name in made]
        target = Path(self.get_ext_fullpath(ext.name))
        self.mkpath(str(target.parent))
        compiler.link_shared_object(objects, str(target), extra_postargs=["-pthread"], target_lang="c++")

    def _compile(self, source: str) -> list[str]:
        flags = TIERS.get(Path(source).name, ()) if _x86() else ()
        try:
            self._taken(flags)
        except FAULTS:
            print(f"foredraft: the compiler does not take {' '.join(flags)}: {Path(source).stem} is left out")
            flags = ()
        lean = () if "CXXFLAGS" in os.environ else ("-g0",)  # who gives flags of his own wants what they bring
        made: list[str] = self.compiler.compile(
            [source], output_dir=self.build_temp, debug=self.debug, extra_postargs=[*COMMON, *lean, *flags]
        )
        return made

    def _taken(self, flags: tuple[str, ...]) -> None:
        """Raise CompileError unless the compiler takes these flags."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "nothing.cpp"
            source.write_text("#include <cstdint>\nint foredraft_nothing;\n")
            self.compiler.compile([str(source)], output_dir=folder, extra_postargs=[*COMMON, *flags])

    def _missing(self, fault: Exception) -> None:
        line = "=" * 100
        words = (
            f"foredraft: the native pass was not built: {fault}",
            "It needs a C++17 compiler (g++ or clang++). The install goes on without it, and models run in torch,",
            "which is slower: pip install 'foredraft[torch]'. Install a compiler and foredraft again to change that.",
        )
        print(line, *words, line, sep="\n", file=sys.stderr)


class Wheel(bdist_wheel):
    """A wheel for a platform and for any Python 3: the library is loaded, not imported."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return Python 3, no ABI, this platform."""
        return ("py3", "none", super().get_tag()[2])


def _x86() -> bool:
    from sysconfig import get_platform

    return get_platform().endswith(("x86_64", "amd64"))


if __name__ == "__main__":
    library = Extension(
        "foredraft.native.libforedraft",
        sources=sorted(str(path) for path in NATIVE.glob("*.cpp")),
        depends=sorted(str(path) for path in NATIVE.glob("*.h")),
        language="c++",
        optional=True,
    )
    setup(ext_modules=[library], cmdclass={"build_ext": BuildNative, "bdist_wheel": Wheel})
