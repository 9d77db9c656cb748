// tests/api/gather_test.cpp
// Attention over an index tensor in host memory, through the public functions: agreement with the
// definition, what counts and what does not, and every refusal.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "keyhole/error.h"
#include "reference/attention.h"
#include "support/gather_cases.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

void forward(GatherProblem& p, const GatherOptions& options) {
  gather_attention_forward(p.q.view(), p.k.view(), p.v.view(), p.indices.lists(), p.out.view(),
                           p.lse.view(), options);
}
void backward(GatherProblem& p, const GatherOptions& options) {
  gather_attention_backward(p.dout.view(), p.q.view(), p.k.view(), p.v.view(), p.out.view(),
                            p.lse.view(), p.indices.lists(),
                            {p.dq.view(), p.dk.view(), p.dv.view(), p.dsink.view()}, options);
}
void both(GatherProblem& p) {
  forward(p, p.options());
  backward(p, p.options());
}

void expect_definition(const GatherProblem& p) {
  const ListAttention want = by_definition(p);
  EXPECT_EQ(forward_difference(p, want), "");
  EXPECT_EQ(backward_difference(p, want), "");
}

TEST(Gather, AgreesWithTheDefinition) {
  for (const GatherCase& each : gather_cases()) {
    for (GatherCase c : in_all_forms(each)) {
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
        c.dtype = dtype;
        SCOPED_TRACE(to_text(c));
        GatherProblem p(c, 5);
        both(p);
        expect_definition(p);
      }
    }
  }
}

// The two references know nothing of each other.
TEST(Gather, TheDefinitionIsThatOfPatterns) {
  const GatherCase c{.name = "a lambda",
                     .batch = 2,
                     .heads = 4,
                     .kv_heads = 2,
                     .index_heads = 1,
                     .q_len = 6,
                     .k_len = 9,
                     .entries = 9,
                     .has_sink = true,
                     .softcap = 2,
                     .dtype = DType::f64};
  GatherProblem p(c, 3);
  const auto allows = [](int64_t query, int64_t key) { return (query * 5 + key * 3) % 4 < 2; };
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t i = 0; i < c.q_len; ++i) {
      for (int64_t key = 0; key < c.k_len; ++key) {
        p.indices.set(b, 0, i, key, allows(i, key) ? key : -1);
      }
    }
  }
  const ListAttention lists = by_definition(p);
  const Pattern pattern = lambda(allows);
  const ReferenceOutput out =
      reference_forward(pattern, p.q.view(), p.k.view(), p.v.view(), p.options(), 0);
  const ReferenceGradients grad = reference_backward(pattern, p.dout.view(), p.q.view(), p.k.view(),
                                                     p.v.view(), p.options(), 0);
  const auto expect_near = [](const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12 * (1 + std::abs(b[i])));
  };
  expect_near(lists.out, out.out);
  expect_near(lists.lse, out.lse);
  expect_near(lists.dq, grad.dq);
  expect_near(lists.dk, grad.dk);
  expect_near(lists.dv, grad.dv);
  expect_near(lists.dsink, grad.dsink);
}

// One query that scores every key alike: values and counts can be read off.
struct Plain {
  std::vector<float> q = {0}, k = std::vector<float>(8, 1.f), v = {0, 1, 2, 3, 4, 5, 6, 7};
  float out = -1, lse = -1;

  template <class Index>
  Plain& attend(const std::vector<Index>& keys) {
    gather_attention_forward({q.data(), DType::f32, {1, 1, 1, 1}},
                             {k.data(), DType::f32, {1, 1, 8, 1}},
                             {v.data(), DType::f32, {1, 1, 8, 1}},
                             IndexView(keys.data(), {1, 1, 1, int64_t(keys.size())}),
                             {&out, DType::f32, {1, 1, 1, 1}}, {&lse, DType::f32, {1, 1, 1}});
    return *this;
  }
  int64_t seen() const { return std::llround(std::exp(double(lse))); }
};

TEST(Gather, AKeyNamedTwiceCountsTwice) {
  Plain plain;
  plain.attend<int32_t>({6, 3, 6});
  EXPECT_EQ(plain.seen(), 3);
  EXPECT_NEAR(plain.out, 5, 1e-6);
}

TEST(Gather, PaddingCountsNothingWhereverItStands) {
  for (const std::vector<int64_t>& keys :
       std::vector<std::vector<int64_t>>{{2, 4, -1, -1}, {-1, 2, -1, 4}, {-1, -1, 4, 2}}) {
    Plain plain;
    plain.attend(keys);
    EXPECT_EQ(plain.seen(), 2);
    EXPECT_NEAR(plain.out, 3, 1e-6);
  }
}

TEST(Gather, AListOfPaddingIsAnEmptyRow) {
  Plain plain;
  plain.attend<int32_t>({-1, -1});
  EXPECT_EQ(plain.out, 0);
  EXPECT_EQ(plain.lse, -std::numeric_limits<float>::infinity());
}

TEST(Gather, TheFormOfTheIndicesChangesNoBit) {
  GatherCase c{.name = "forms",
               .heads = 4,
               .kv_heads = 2,
               .index_heads = 2,
               .q_len = 9,
               .k_len = 200,
               .entries = 150,
               .head_dim = 32,
               .v_head_dim = 32};
  std::vector<uint64_t> bits;
  for (const GatherCase& form : in_all_forms(c)) {
    for (const int threads : {1, 2}) {
      GatherProblem p(form, 11);
      GatherOptions options = p.options();
      options.threads = threads;
      forward(p, options);
      backward(p, options);
      const std::vector<uint64_t> got = p.result_bits();
      if (bits.empty()) bits = got;
      EXPECT_TRUE(got == bits) << to_text(form) << ", " << threads << " threads";
    }
  }
}

TEST(Gather, ValuesThatNobodyAttendsToReachNobody) {
  const GatherCase c{.name = "NaN", .heads = 2, .q_len = 3, .k_len = 9, .entries = 4};
  GatherProblem p(c, 2);
  for (int64_t i = 0; i < c.q_len; ++i) {
    for (int64_t place = 0; place < c.entries; ++place) p.indices.set(0, 0, i, place, i + place);
  }
  // Keys 6 to 8 are in no list.
  for (int64_t x = 6 * c.head_dim; x < 9 * c.head_dim; ++x) {
    p.k.set(x, std::nan("")), p.v.set(x, std::nan(""));
  }
  p.k.seal(), p.v.seal();
  both(p);
  expect_definition(p);
}

TEST(Gather, BadEntriesAreNamedAndNothingIsWritten) {
  struct Row {
    bool is_wide;
    int64_t value;
  };
  for (const auto& [is_wide, value] :
       {Row{false, 20}, {true, 20}, {false, -2}, {true, (int64_t{1} << 32) + 3}}) {
    GatherProblem p({.name = "bad",
                     .batch = 2,
                     .heads = 4,
                     .kv_heads = 2,
                     .index_heads = 2,
                     .q_len = 5,
                     .k_len = 20,
                     .entries = 6,
                     .is_wide = is_wide,
                     .is_strided = true},
                    4);
    p.indices.set(1, 0, 3, 2, value);
    p.indices.set(1, 1, 4, 5, 99);  // a later one
    const auto before = p.out.bits();
    const std::string want = "attention: indices[1, 0, 3, 2] is " + std::to_string(value) +
                             "; k has 20 keys: accepted are 0 to 19, and -1 for none";
    EXPECT_EQ(message_of([&] { forward(p, p.options()); }), want);
    EXPECT_EQ(message_of([&] { backward(p, p.options()); }), want);
    EXPECT_TRUE(p.out.bits() == before);
  }
}

struct BadView {
  const char* name;
  std::function<void(IndexView&)> spoil;
  const char* error;
};

TEST(Gather, BadIndicesAreRefused) {
  const BadView rows[] = {
      {"device", [](IndexView& i) { i.device = {Device::Kind::cuda, 0}; },
       "attention: q is in host memory but indices are on GPU 0; all tensors of a call must be in "
       "one place"},
      {"size", [](IndexView& i) { i.shape[3] = -1; },
       "attention: indices are int32 [2, 2, 5, -1]; sizes must not be negative"},
      {"stride", [](IndexView& i) { i.strides[3] = -1; },
       "attention: indices have stride -1 in dimension 3; negative strides are not supported, copy "
       "them first"},
      {"null", [](IndexView& i) { i.data = nullptr; },
       "attention: indices are int32 [2, 2, 5, 6] but their data pointer is null"},
      {"alignment", [](IndexView& i) { i.data = static_cast<const std::byte*>(i.data) + 2; },
       "attention: indices are not aligned to their element size of 4 bytes"},
      {"rows_per_list", [](IndexView& i) { i.rows_per_list = 0; },
       "attention: rows_per_list is 0; it must be 1 or more"},
      {"batch", [](IndexView& i) { i.shape[0] = 1; },
       "attention: indices are int32 [1, 2, 5, 6]; their batch must be that of q, 2"},
      {"heads", [](IndexView& i) { i.shape[1] = 3; },
       "attention: indices are int32 [2, 3, 5, 6]; their heads must be those of k, 2, those of q, "
       "4, or 1"},
      {"lists", [](IndexView& i) { i.rows_per_list = 2; },
       "attention: indices are int32 [2, 2, 5, 6]; q has 5 queries, 2 of them to a list: expected "
       "3 lists"},
      {"entries", [](IndexView& i) { i.shape[3] = (int64_t{1} << 30) + 1, i.strides[3] = 0; },
       "attention: indices are int32 [2, 2, 5, 1073741825]; a list has at most 1073741824 "
       "entries"},
      {"overflow", [](IndexView& i) { i.strides[0] = int64_t{1} << 62; },
       "indices: 4611686018427387964 x 4 does not fit 64 bits"},
  };
  GatherProblem p({.name = "bad",
                   .batch = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .index_heads = 2,
                   .q_len = 5,
                   .k_len = 20,
                   .entries = 6},
                  4);
  for (const BadView& row : rows) {
    IndexView indices = p.indices.view();
    row.spoil(indices);
    const auto before = p.out.bits();
    EXPECT_EQ(message_of([&] {
                gather_attention_forward(p.q.view(), p.k.view(), p.v.view(), indices, p.out.view());
              }),
              row.error)
        << row.name;
    EXPECT_TRUE(p.out.bits() == before) << row.name;
  }
  IndexView inside = p.indices.view();
  inside.data = p.out.view().data;
  EXPECT_EQ(message_of([&] {
              gather_attention_forward(p.q.view(), p.k.view(), p.v.view(), inside, p.out.view());
            }),
            "attention: out overlaps indices in memory; outputs need memory of their own");
  EXPECT_EQ(message_of([] { IndexView(static_cast<const int32_t*>(nullptr), {1, 2}); }),
            "IndexView: got 2 dimensions; indices have 4: [batch, heads, lists, entries]");
  both(p);  // and a sound call still works
  expect_definition(p);
}

struct BadLists {
  const char* name;
  std::function<void(KeyListView&)> spoil;
  const char* error;
};

TEST(Gather, BadKeyListsAreRefused) {
  const int32_t used[] = {6, 5, 4, 7, 2, 1, 0, 6, 6, 6};
  const BadLists rows[] = {
      {"no keys", [](KeyListView& l) { l.keys_per_entry = 0; },
       "attention: keys_per_entry is 0 and indices are int32 [1, 2, 5, 6]; accepted are 1 to "
       "178956970, so that a list has at most 1073741824 keys"},
      {"many keys", [](KeyListView& l) { l.keys_per_entry = 178956971; },
       "attention: keys_per_entry is 178956971 and indices are int32 [1, 2, 5, 6]; accepted are 1 "
       "to 178956970, so that a list has at most 1073741824 keys"},
      {"shape", [&](KeyListView& l) { l.counts = IndexView(used, {1, 1, 5, 1}); },
       "attention: counts are int32 [1, 1, 5, 1]; indices are int32 [1, 2, 5, 6]: expected [1, 2, "
       "5, 1]"},
      {"device",
       [&](KeyListView& l) {
         l.counts = IndexView(used, {1, 2, 5, 1});
         l.counts.device = {Device::Kind::cuda, 0};
       },
       "attention: q is in host memory but counts are on GPU 0; all tensors of a call must be in "
       "one place"},
      {"count", [&](KeyListView& l) { l.counts = IndexView(used, {1, 2, 5, 1}); },
       "attention: counts[0, 0, 3] is 7; a list has 6 entries: accepted are 0 to 6"},
      {"causal",
       [](KeyListView& l) {
         l.causal = true;
         l.indices.rows_per_list = 5, l.indices.shape[2] = 1;
       },
       "attention: causal lists have 5 queries each, which see different keys; give every query a "
       "list of its own (rows_per_list 1), or pass lists of tiles with bitmaps"},
      {"entry", [](KeyListView& l) { l.keys_per_entry = 7; },
       "attention: indices[0, 1, 2, 3] is 3; k has 20 keys, 7 to an entry: accepted are 0 to 2, "
       "and "
       "-1 for none"},
  };
  GatherProblem p({.name = "bad",
                   .heads = 4,
                   .kv_heads = 2,
                   .index_heads = 2,
                   .q_len = 5,
                   .k_len = 20,
                   .entries = 6,
                   .keys_per_entry = 7},
                  4);
  p.indices.set(0, 1, 2, 3, 3);
  for (const BadLists& row : rows) {
    KeyListView lists{.indices = p.indices.view()};
    row.spoil(lists);
    const auto before = p.out.bits();
    EXPECT_EQ(message_of([&] {
                attention_forward(p.q.view(), p.k.view(), p.v.view(), lists, p.out.view());
              }),
              row.error)
        << row.name;
    EXPECT_TRUE(p.out.bits() == before) << row.name;
  }
}

// What lies behind a count may be no entry at all, and a list of entries is that of their keys.
TEST(Gather, EntriesAreTheListsOfTheirKeys) {
  GatherProblem p({.name = "entries",
                   .heads = 2,
                   .q_len = 12,
                   .k_len = 30,
                   .entries = 6,
                   .keys_per_entry = 4,
                   .has_counts = true,
                   .causal = true},
                  8);
  both(p);
  const std::vector<uint64_t> bits = p.result_bits();
  std::vector<int32_t> keys(12 * 24, -1);
  for (int64_t i = 0; i < 12; ++i) {
    const std::vector<int64_t> listed = p.indices.keys(0, 0, i);
    std::copy(listed.begin(), listed.end(), keys.begin() + 24 * i);
  }
  const IndexView plain(keys.data(), {1, 1, 12, 24});
  attention_forward(p.q.view(), p.k.view(), p.v.view(), plain, p.out.view(), p.lse.view());
  attention_backward(p.dout.view(), p.q.view(), p.k.view(), p.v.view(), p.out.view(), p.lse.view(),
                     plain, {p.dq.view(), p.dk.view(), p.dv.view(), {}});
  EXPECT_TRUE(p.result_bits() == bits);
}

TEST(Gather, NoWorkspaceIsNeededInHostMemory) {
  const GatherProblem p({.name = "workspace", .q_len = 5, .k_len = 20, .entries = 6}, 4);
  const TensorView &q = p.q.view(), &k = p.k.view(), &v = p.v.view();
  EXPECT_EQ(forward_workspace_bytes(q, k, v, p.indices.view(), p.out.view()), 0);
  EXPECT_EQ(backward_workspace_bytes(p.dout.view(), q, k, v, p.out.view(), p.lse.view(),
                                     p.indices.view(), {p.dq.view(), p.dk.view(), p.dv.view(), {}}),
            0);
}

}  // namespace
}  // namespace keyhole::test
