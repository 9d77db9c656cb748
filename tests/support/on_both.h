// tests/support/on_both.h
// KEYHOLE_ON_BOTH marks a function that the host and a GPU compute alike, from one source.
#pragma once

#ifdef __CUDACC__
#define KEYHOLE_ON_BOTH __host__ __device__
#else
#define KEYHOLE_ON_BOTH
#endif
