#!/usr/bin/env python3
# scripts/gpu_architectures.py
# Asks the CUDA driver for the GPUs of this machine and prints what to compile for, as CMake takes it: 90, or 80;90. Prints
# nothing and ends with status 1 where no GPU can be used: no driver, no GPU, or only GPUs older than CUDA 13 compiles for.
import ctypes
import sys

OLDEST = 75
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def usable():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return set()

    def ask(function, *arguments):
        value = ctypes.c_int()
        return value.value if getattr(driver, function)(ctypes.byref(value), *arguments) == 0 else 0

    if driver.cuInit(0) != 0:
        return set()
    capabilities = (
        10 * ask("cuDeviceGetAttribute", MAJOR, ordinal) + ask("cuDeviceGetAttribute", MINOR, ordinal)
        for ordinal in range(ask("cuDeviceGetCount"))
    )
    return {capability for capability in capabilities if capability >= OLDEST}


if __name__ == "__main__":
    architectures = usable()
    if architectures:
        print(*sorted(architectures), sep=";")
    sys.exit(not architectures)
