// src/kernels/sm80/top_k.cu
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/int_math.h"
#include "base/ordered_bits.h"
#include "kernels/device/find_from_top.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/row_choice.cuh"
#include "kernels/device/rows.cuh"
#include "kernels/device/storage.h"
#include "kernels/device/top_k_by_digits.h"
#include "kernels/sm80/top_k_params.h"

namespace keyhole::sm80 {
namespace {

using device::CtaSum, device::FindFromTop, device::RowCounts, device::RowOfBits, device::Takes,
    device::TopKRows, device::value_of;

constexpr int32_t kThreads = 256, kFinishThreads = 512;
constexpr int32_t kSampleOfThread = kTopKSample / kThreads;

__device__ RowOfBits bits_of(const TopKRows& rows, const TopKRows::Place& place) {
  return {rows.visible_of(place), rows.always_of(place), rows.entries};
}

// ---- bound ----

// The rank in a sample that is hardly ever too high, if `expected` of the best are in it.
// Neighbours may have similar scores: then four of the sample say little more than one.
__host__ __device__ inline float rank_in_sample(float expected) {
  return expected + 6 * sqrtf(expected) + 8;
}

// Where the open entries of a row begin and end, in whole words.
struct Span {
  int32_t first, last;
};
__device__ Span span_of(const RowOfBits& bits) {
  if (bits.visible == nullptr) return {0, int32_t(bits.entries)};
  __shared__ int32_t first_word, last_word;
  if (threadIdx.x == 0) first_word = INT_MAX, last_word = -1;
  __syncthreads();
  int32_t first = INT_MAX, last = -1;
  for (int64_t word = threadIdx.x; word < ceil_div(bits.entries, int64_t{32}); word += kThreads) {
    if (bits.open_word(word) == 0) continue;
    first = min(first, int32_t(word));
    last = int32_t(word);
  }
  if (last >= 0) {
    atomicMin(&first_word, first);
    atomicMax(&last_word, last);
  }
  __syncthreads();
  return {32 * first_word, int32_t(min(int64_t{32} * (last_word + 1), bits.entries))};
}

// Entry i of the sample of a stretch. Four neighbours at a time, which costs a quarter of the
// reads; and these not at equal distances, because scores may have a period.
__device__ int64_t sampled_entry(const Span& span, uint32_t i) {
  constexpr uint32_t kNeighbours = 4, kPlaces = kTopKSample / kNeighbours;
  const uint32_t place = i / kNeighbours, step = uint32_t(span.last - span.first) / kPlaces;
  const uint32_t shift = __umulhi(place * 2654435761u, step - kNeighbours);
  return span.first + int64_t{place} * step + shift + i % kNeighbours;
}

template <class Storage>
__device__ float bound_of(const Storage* scores, const RowOfBits& bits, const RowCounts& counts,
                          int32_t rank, FindFromTop<kThreads>& bins, CtaSum<kThreads>& sums) {
  const Span span = span_of(bits);
  if (span.last - span.first < 2 * kTopKSample) return -FLT_MAX;
  uint32_t sample[kSampleOfThread];  // 0: cannot be chosen
  uint32_t num_open = 0, num_there = 0;
#pragma unroll
  for (int32_t i = 0; i < kSampleOfThread; ++i) {
    const int64_t entry = sampled_entry(span, uint32_t(i * kThreads) + threadIdx.x);
    const bool is_open = bits.is_open(entry);
    const float score = is_open ? value_of(scores[entry]) : -INFINITY;
    sample[i] = device::can_be_chosen(score) ? ordered_bits(score) : 0;
    num_open += is_open;
    num_there += sample[i] != 0;
  }
  num_open = sums.all(num_open);
  num_there = sums.all(num_there);
  const float expected = float(num_open) * float(rank) / float(counts.open());
  const auto wanted = uint32_t(rank_in_sample(expected));
  if (wanted > num_there) return -FLT_MAX;
  // The highest 22 bits of the score of that rank.
  uint32_t bound = 0, left = wanted;
#pragma unroll
  for (int32_t shift = 21; shift >= 10; shift -= 11) {
    bins.clear();
#pragma unroll
    for (int32_t i = 0; i < kSampleOfThread; ++i) {
      const bool is_near = shift == 21 || sample[i] >> 21 == bound >> 21;
      if (sample[i] != 0 && is_near) atomicAdd(&bins[sample[i] >> shift & (device::kBins - 1)], 1u);
    }
    const device::RankedBin found = bins.find(left, sums);
    bound |= uint32_t(found.bin) << shift;
    left -= found.above;
  }
  return number_of_bits<float>(max(bound, ordered_bits(-FLT_MAX)));
}

template <class Storage>
__global__ void __launch_bounds__(kThreads) bound_rows(const __grid_constant__ TopKParams p) {
  __shared__ FindFromTop<kThreads> bins;
  __shared__ CtaSum<kThreads> sums;
  const TopKRows::Place place = p.rows.place(blockIdx.x);
  const RowOfBits bits = bits_of(p.rows, place);
  const RowCounts counts = device::count_row(p.rows, bits, sums);
  RowState state = {-FLT_MAX, int32_t(counts.takes), p.rows.k - counts.always, 0};
  if (counts.takes == Takes::best && counts.open() > p.capacity) {
    const auto* scores = p.rows.template scores_of<Storage>(place);
    state.bound = bound_of(scores, bits, counts, state.rank, bins, sums);
  }
  if (threadIdx.x == 0) p.states[blockIdx.x] = state;
}

// ---- collect ----

template <class Storage>
struct alignas(16) Vector {
  static constexpr int32_t kLength = 16 / int32_t(sizeof(Storage));
  Storage at[kLength];
};

// The entries [begin, begin + kLength) of a row that reach the bound, as bits. Entries from `end`
// on are not read.
template <class Storage>
__device__ uint32_t hits_of(const Vector<Storage>& scores, float bound) {
  uint32_t hits = 0;
#pragma unroll
  for (int32_t i = 0; i < Vector<Storage>::kLength; ++i) {
    hits |= uint32_t(value_of(scores.at[i]) >= bound) << i;  // false for NaN
  }
  return hits;
}

template <class Storage>
__device__ Vector<Storage> load_vector(const Storage* scores, int64_t begin, int64_t end,
                                       bool in_vectors) {
  constexpr int32_t kLength = Vector<Storage>::kLength;
  if (in_vectors && begin + kLength <= end) {
    return *reinterpret_cast<const Vector<Storage>*>(scores + begin);
  }
  Vector<Storage> loaded;
#pragma unroll
  for (int32_t i = 0; i < kLength; ++i) {
    loaded.at[i] = begin + i < end ? scores[begin + i] : device::stored_as<Storage>(NAN);
  }
  return loaded;
}

// The list of a segment, in shared memory.
struct SegmentList {
  uint64_t* keys;
  int32_t capacity;
  uint32_t* count;  // more than have room, perhaps

  // The hits of a lane's entries; entry_of(bit) says which. The whole warp calls.
  template <class Storage, class EntryOf>
  __device__ void add(uint32_t hits, const Storage* scores, EntryOf entry_of) const {
    const uint32_t lane = threadIdx.x % 32, own = uint32_t(__popc(hits));
    if (!__any_sync(~0u, hits != 0)) return;
    uint32_t upto = own;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto += other;
    }
    uint32_t base = 0;
    if (lane == 31) base = atomicAdd(count, upto);
    uint32_t place = __shfl_sync(~0u, base, 31) + upto - own;
    // A lane has few hits; it reads them again, since registers have no index.
    for (; hits != 0; hits &= hits - 1, ++place) {
      const int64_t entry = entry_of(__ffs(int(hits)) - 1);
      if (place >= uint32_t(capacity)) continue;
      const uint32_t score = ordered_bits(value_of(scores[entry]));
      keys[place] = uint64_t{score} << 32 | ~uint32_t(entry);
    }
    __syncwarp();
  }
};

template <class Storage, bool kHasBits>
__global__ void __launch_bounds__(kThreads) collect(const __grid_constant__ TopKParams p) {
  constexpr int32_t kLength = Vector<Storage>::kLength, kVectors = 16 / kLength;
  constexpr int32_t kStep = kThreads * kLength;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ uint32_t count, base;
  const int64_t index = blockIdx.x / uint32_t(p.segments);
  const RowState state = p.states[index];
  if (state.takes != int32_t(Takes::best)) return;
  const TopKRows::Place place = p.rows.place(index);
  const RowOfBits bits = bits_of(p.rows, place);
  const Storage* const scores = p.rows.template scores_of<Storage>(place);
  const int64_t segment = blockIdx.x - index * p.segments;
  const int64_t begin = segment * p.segment_entries;
  const int64_t end = min(begin + p.segment_entries, p.rows.entries);
  const SegmentList list = {reinterpret_cast<uint64_t*>(memory), p.capacity, &count};
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int64_t first = begin; first < end; first += kVectors * kStep) {
    const int64_t own = first + int64_t{threadIdx.x} * kLength;
    Vector<Storage> loaded[kVectors];
#pragma unroll
    for (int32_t i = 0; i < kVectors; ++i) {
      loaded[i] = load_vector(scores, own + i * kStep, end, p.in_vectors);
    }
    uint32_t hits = 0;
#pragma unroll
    for (int32_t i = 0; i < kVectors; ++i) {
      uint32_t hits_here = hits_of(loaded[i], state.bound);
      const int64_t entry = own + i * kStep;
      // A vector does not cross a word: segments begin at whole steps.
      if (kHasBits && entry < end) hits_here &= bits.open_word(entry / 32) >> (entry % 32);
      hits |= hits_here << (i * kLength);
    }
    list.add(hits, scores,
             [&](int32_t bit) { return own + bit / kLength * kStep + bit % kLength; });
  }
  __syncthreads();
  if (threadIdx.x == 0) base = atomicAdd(&p.states[index].listed, count);
  __syncthreads();
  uint64_t* const to = p.lists + index * p.capacity;
  const uint32_t stored = min(count, uint32_t(p.capacity));
  for (uint32_t i = threadIdx.x; i < stored && base + i < uint32_t(p.capacity); i += kThreads) {
    to[base + i] = list.keys[i];
  }
}

// ---- finish ----

struct FinishShared {
  static constexpr int32_t kWindowWords = 4096;

  FindFromTop<kFinishThreads> bins;
  CtaSum<kFinishThreads> sums;
  uint32_t highest_score;         // ordered bits
  uint32_t window[kWindowWords];  // a bit per entry
};

// The keys of a row's list, read again in each pass: they are in the L1 cache.
struct ListedKeys {
  const uint64_t* keys;
  uint32_t count;

  template <class Visit>
  __device__ void for_each(Visit visit) const {
    for (uint32_t i = threadIdx.x; i < count; i += kFinishThreads) visit(keys[i]);
  }
};

// The key of a rank: exactly `rank` keys are not below it. All keys differ. The range in which it
// lies is divided into bins again and again; after the first time few keys are left.
__device__ uint64_t key_of_rank(const ListedKeys& keys, uint64_t lowest, uint32_t rank,
                                FinishShared& shared) {
  if (threadIdx.x == 0) shared.highest_score = 0;
  __syncthreads();
  uint32_t own = 0;
  keys.for_each([&](uint64_t key) { own = max(own, uint32_t(key >> 32)); });
  own = __reduce_max_sync(~0u, own);
  if (threadIdx.x % 32 == 0) atomicMax(&shared.highest_score, own);
  __syncthreads();
  uint64_t highest = uint64_t{shared.highest_score} << 32 | ~0u;
  for (int32_t round = 0; round < 8; ++round) {
    const int32_t shift = max(0, 64 - 11 - __clzll((long long)(highest - lowest)));
    shared.bins.clear();
    keys.for_each([&](uint64_t key) {
      if (key >= lowest && key <= highest)
        atomicAdd(&shared.bins[uint32_t(key - lowest >> shift)], 1u);
    });
    const device::RankedBin found = shared.bins.find(rank, shared.sums);
    rank -= found.above;
    lowest += uint64_t(found.bin) << shift;
    highest = min(highest, lowest + ((uint64_t{1} << shift) - 1));
    if (found.count == rank || shift == 0) break;
  }
  return lowest;
}

// Writes the keys from `last` on and the entries of `always`, in order: a stretch of entries at a
// time, as bits.
__device__ void write_keys(const TopKParams& p, const TopKRows::Place& place, const RowOfBits& bits,
                           const ListedKeys& keys, uint64_t last, FinishShared& shared) {
  constexpr int64_t kWindow = FinishShared::kWindowWords;
  device::ListWriter<kFinishThreads> list(p.rows, place, shared.sums);
  const int64_t words = ceil_div(p.rows.entries, int64_t{32});
  for (int64_t window = 0; window < words; window += kWindow) {
    const int64_t here = min(kWindow, words - window);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < here; i += kFinishThreads) shared.window[i] = 0;
    __syncthreads();
    keys.for_each([&](uint64_t key) {
      const uint32_t entry = ~uint32_t(key);
      const int64_t word = int64_t(entry / 32) - window;
      if (key >= last && word >= 0 && word < here) atomicOr(shared.window + word, 1u << entry % 32);
    });
    __syncthreads();
    // A thread has neighbouring words: one sum over the threads serves all of them.
    constexpr int32_t kOwn = int32_t(kWindow) / kFinishThreads;
    uint32_t own[kOwn];
#pragma unroll
    for (int32_t i = 0; i < kOwn; ++i) {
      const int64_t word = int64_t{threadIdx.x} * kOwn + i;
      own[i] = word < here ? shared.window[word] | bits.always_word(window + word) : 0;
    }
    list.write(own, 32 * (window + int64_t{threadIdx.x} * kOwn));
  }
  list.finish();
}

__global__ void __launch_bounds__(kFinishThreads) finish(const __grid_constant__ TopKParams p) {
  __shared__ FinishShared shared;
  const int64_t index = blockIdx.x;
  const RowState state = p.states[index];
  const TopKRows::Place place = p.rows.place(index);
  const RowOfBits bits = bits_of(p.rows, place);
  const auto rank = uint32_t(state.rank);
  const bool is_best = state.takes == int32_t(Takes::best);
  const bool is_too_high = state.listed < rank && state.bound > -FLT_MAX;
  const bool is_left = is_best && (is_too_high || state.listed > uint32_t(p.capacity));
  if (threadIdx.x == 0) p.is_left[index] = is_left;
  if (is_left) return;
  if (!is_best) {
    const bool is_visible = state.takes == int32_t(Takes::visible);
    return device::write_words(p.rows, place, shared.sums, [&](int64_t word) {
      return is_visible ? bits.visible_word(word) : bits.always_word(word);
    });
  }
  const ListedKeys keys = {p.lists + index * p.capacity, state.listed};
  uint64_t last = 0;
  if (state.listed > rank) {
    last = key_of_rank(keys, uint64_t{ordered_bits(state.bound)} << 32, rank, shared);
  }
  write_keys(p, place, bits, keys, last, shared);
}

// ---- launches ----

struct Room {
  int64_t bits, states, left, lists, all;
};
Room room_of(const TopKArgs& args) {
  const int64_t* const n = args.scores.shape;
  const int64_t num_rows = checked_mul(checked_mul(n[0], n[1], "top_k: rows"), n[2], "top_k: rows");
  Room room;
  room.bits = device::top_k_bits_bytes(args);
  room.states = round_up(num_rows * int64_t{sizeof(RowState)}, 256);
  room.left = round_up(num_rows * 4, 256);
  room.lists = checked_mul(num_rows, top_k_capacity(args.k, n[3]) * 8, "top_k: lists");
  room.all = room.bits + room.states + room.left + room.lists;
  return room;
}

int32_t segments_of(const TopKArgs& args, int64_t num_rows, int64_t entries) {
  constexpr int64_t kShortest = 8192;
  const int64_t wanted = 2 * int64_t{args.launch.num_processors} / std::max<int64_t>(1, num_rows);
  return int32_t(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, entries / kShortest)));
}

template <DType kType>
TopKParams params_of(const TopKArgs& args) {
  constexpr int64_t kBytes = int64_t{sizeof(device::Storage<kType>)};
  const Room room = room_of(args);
  auto* memory = static_cast<std::byte*>(args.launch.workspace);
  TopKParams p;
  p.rows = device::top_k_rows(args, memory, static_cast<cudaStream_t>(args.launch.stream));
  memory += room.bits;
  p.states = reinterpret_cast<RowState*>(memory);
  p.is_left = reinterpret_cast<int32_t*>(memory + room.states);
  p.lists = reinterpret_cast<uint64_t*>(memory + room.states + room.left);
  p.capacity = int32_t(top_k_capacity(args.k, p.rows.entries));
  p.segments = segments_of(args, p.rows.num_rows, p.rows.entries);
  p.segment_entries =
      round_up(ceil_div(p.rows.entries, int64_t{p.segments}), int64_t{kThreads} * 16);
  const auto is_even = [&](int64_t stride) { return stride * kBytes % 16 == 0; };
  p.in_vectors = reinterpret_cast<uintptr_t>(p.rows.scores) % 16 == 0 &&
                 is_even(p.rows.row_stride) && is_even(p.rows.group_stride) &&
                 is_even(p.rows.batch_stride);
  return p;
}

}  // namespace

int64_t top_k_capacity(int64_t k, int64_t entries) {
  constexpr int64_t kStep = kFinishThreads;
  if (entries <= kMostListed) return round_up(std::max<int64_t>(1, entries), kStep);
  const double each = double(entries) / kTopKSample;
  const double wanted = rank_in_sample(float(double(std::min(k, entries)) / each));
  return round_up(int64_t((wanted + 6 * std::sqrt(wanted)) * each), kStep);
}

int64_t top_k_workspace(const TopKArgs& args) { return room_of(args).all; }

template <DType kType>
void run_top_k(const TopKArgs& args) {
  using Storage = device::Storage<kType>;
  const TopKParams p = params_of<kType>(args);
  if (p.rows.num_rows == 0) return;
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  const auto rows = unsigned(p.rows.num_rows);
  device::launch("top_k: bounds", bound_rows<Storage>, {rows, kThreads, 0}, stream, p);
  const bool has_bits = p.rows.visible.is_given() || p.rows.always.is_given();
  const auto list_bytes = size_t(p.capacity) * 8;
  const auto collect_rows = has_bits ? collect<Storage, true> : collect<Storage, false>;
  static device::OncePerGpu reserve[2];
  device::reserve_shared_memory(reserve[has_bits], collect_rows, kMostListed * 8, "sm80.top_k");
  device::launch("top_k: lists", collect_rows, {rows * unsigned(p.segments), kThreads, list_bytes},
                 stream, p);
  device::launch("top_k: the best of lists", finish, {rows, kFinishThreads, 0}, stream, p);
  device::launch_top_k_by_digits(kType, p.rows, p.is_left, stream);
}

template void run_top_k<DType::f32>(const TopKArgs& args);
template void run_top_k<DType::f16>(const TopKArgs& args);
template void run_top_k<DType::bf16>(const TopKArgs& args);

}  // namespace keyhole::sm80
