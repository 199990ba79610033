#!/bin/sh
# Builds the drivers of one ABI version anew, into its folder: tests/driver_abi/build.sh 1.0
# Only for a new version: what is checked in stays as it is, since the point is that old binaries run.
set -eu
version=${1:?usage: build.sh VERSION, such as 1.0}
folder=$(dirname "$0")/$version
build() {
  ${CC:-cc} -std=gnu11 -Os -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -I"$folder/include" \
    -Wl,-s,--build-id=none,-z,noseparate-code,--hash-style=gnu -fno-asynchronous-unwind-tables "$@"
}
build "$folder/required.c" -o "$folder/librequired.so"
build "$folder/required.c" -DREFUSED -o "$folder/librefused.so"
build "$folder/full.c" -ldl -o "$folder/libfull.so"
