// src/kernels/cpu/entmax_primitives.h
// The steps of entmax and top_k on rows of scores and on lists of keys: one table of functions per
// storage type, compiled for the best instruction set of this machine, as in primitives.h.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/entmax.h"
#include "kernels/cpu/config.h"

namespace keyhole::cpu {

// The keys of some rows that may have weight, so far.
template <class T>
struct Candidates {
  T* scores;      // [rows][room]
  int32_t* keys;  // [rows][room]
  int64_t room;   // at least a whole vector more than a row is filled
  int64_t* count;
  T* bound;   // what is below has no weight
  T* lambda;  // a lower bound of it

  Candidates from_row(int64_t r) const {
    return {scores + r * room, keys + r * room, room, count + r, bound + r, lambda + r};
  }
};

// How a bound is found for a row that has none.
struct FirstBound {
  EntmaxPower power;
  int64_t top_k;  // 0: all keys
};

// Lists that are read by vectors have room for a whole one behind their end.
template <class Storage>
struct EntmaxPrimitives {
  using T = typename Traits<Storage>::Compute;

  // scores = softcap * tanh(factor * scores)
  void (*cap)(T* scores, int64_t stride, int64_t rows, int64_t cols, T factor, T softcap);
  // Appends the scores, times the factor, that are not below the bound of their row, NaN too, and
  // perhaps a few just below. If first_bound is given, a bound that is the lowest number is raised
  // by these scores before, and lambda with it where they tell it. Column x is key first_key + x;
  // cols is a multiple of 16, up to kScanKeys; up to kPanel scores behind a row are read.
  void (*collect)(const T* scores, int64_t stride, int64_t rows, int64_t cols, T factor,
                  int32_t first_key, const FirstBound* first_bound, const Candidates<T>& to);

  // lambda of a list of scores, NaN if one of them is not finite; writes behind its end. at_least:
  // a lower bound, such as the lambda of some of them.
  Lambda<T> (*solve)(const EntmaxPower& power, T* scores, int64_t count, T at_least);
  // A lambda nearer to that of a list of scores than `at_least`, and not above it; NaN or infinity
  // if one of them is not finite.
  T (*raise)(const EntmaxPower& power, T* scores, int64_t count, T at_least);
  // Drops what is below the bound from a list; gives the new count.
  int64_t (*drop)(T* scores, int32_t* keys, int64_t count, T bound);
  // Weight and slope of each score; their sums. Writes behind the end of all three lists.
  EntmaxSums<double> (*weigh)(const EntmaxPower& power, T* scores, int64_t count,
                              const Lambda<T>& lambda, T* weights, T* slopes);

  // out[i] = row . rows[keys[i]]; row is padded with zeros to whole vectors.
  void (*gather_dots)(const T* row, const Storage* rows, int64_t stride, const int32_t* keys,
                      int64_t count, int64_t cols, T* out);
  // out = sum of weights[i] * rows[keys[i]]; out has whole vectors. Sums in pieces: a long list of
  // equal weights would drift otherwise.
  void (*gather_sum)(const T* weights, const Storage* rows, int64_t stride, const int32_t* keys,
                     int64_t count, int64_t cols, T* out);
  // to[keys[i]] += weights[i] * row; cols is a multiple of the lanes.
  void (*scatter)(const T* weights, const T* row, int64_t cols, const int32_t* keys, int64_t count,
                  T* to, int64_t stride);
};

template <class Storage>
const EntmaxPrimitives<Storage>& entmax_primitives();

}  // namespace keyhole::cpu
