#!/bin/sh
# Compiles the op library of this pack for every torch from 2.10 on.
set -e
cd "$(dirname "$0")"
torch=$(python -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
exec "${CXX:-g++}" -std=c++20 -O3 -Wall -Wextra -Werror -shared -fPIC -DTORCH_TARGET_VERSION=0x020a000000000000 \
  -isystem "$torch/include" lerp_relu.cpp -L"$torch/lib" -ltorch_cpu -o libblend.so
