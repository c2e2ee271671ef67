"""The one thing pyproject.toml cannot say: the optional C kernels. Without a compiler the install goes on."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "engine.native._kernels",
            sources=sorted(glob("engine/native/*.c")),
            depends=sorted(glob("engine/native/*.h")),
            # Not -march=native: each file names the instructions it uses, and the CPU is asked at run time.
            # -fopenmp only here: the runtime is the one torch has loaded (engine/native/__init__.py).
            extra_compile_args=["-std=gnu11", "-O3", "-fopenmp"],
            libraries=["m"],
            optional=True,
        )
    ]
)
