// course/04_patterns/causality.cpp
// Six causal masks that are wrong, and two that are right. Each is compared with the definition,
// and goes through two tests that need no definition: a change of a future key must not reach a
// query, and a change of a past key must.
#include <cstdio>
#include <functional>

#include "definition.h"

namespace {

using course::Head, course::Values;

// The definition: the last query stands at the last key, so query i stands at i + k_len - q_len.
int64_t position(const Head& head, int64_t query) { return query + head.k_len - head.q_len; }

using Rule = std::function<bool(const Head& head, int64_t query, int64_t key)>;

const Rule kCausal = [](const Head& head, int64_t query, int64_t key) {
  return key <= position(head, query);
};
const Rule kSeesNext = [](const Head& head, int64_t query, int64_t key) {
  return key <= position(head, query) + 1;  // off by one: the next token, which is to be guessed
};
const Rule kMissesItself = [](const Head& head, int64_t query, int64_t key) {
  return key < position(head, query);  // off by one, to the other side
};
const Rule kTopLeft = [](const Head&, int64_t query, int64_t key) {
  return key <= query;  // right only where q_len == k_len
};
const Rule kWholeTiles = [](const Head& head, int64_t query, int64_t key) {
  return key / 4 <= position(head, query) / 4;  // tiles on the diagonal are not masked inside
};

// The mask where it does not belong. Without the mask both are plain attention.
enum class Misplaced { scores_times_mask, weights_times_mask };

Values misplaced_mask(const Head& head, Misplaced place) {
  Values out(head.q.size());
  for (int64_t query = 0; query < head.q_len; ++query) {
    std::vector<double> weight(head.k_len);
    double sum = 0;
    for (int64_t key = 0; key < head.k_len; ++key) {
      const double mask = kCausal(head, query, key) ? 1 : 0;
      const double score = course::score(head, query, key);
      // A score of 0 is no mask: exp(0) = 1.
      weight[key] = std::exp(place == Misplaced::scores_times_mask ? score * mask : score);
      sum += weight[key];  // with the future in it
      if (place == Misplaced::weights_times_mask) weight[key] *= mask;
    }
    for (int64_t d = 0; d < head.head_dim; ++d) {
      double value = 0;
      for (int64_t key = 0; key < head.k_len; ++key) {
        value += weight[key] / sum * head.v[key * head.head_dim + d];
      }
      out[query * head.head_dim + d] = static_cast<float>(value);
    }
  }
  return out;
}

struct Version {
  const char* name;
  std::function<Values(const Head&)> attention;
};

Version by_rule(const char* name, const Rule& rule) {
  return {name, [rule](const Head& head) {
            return course::by_definition(head,
                                         [&](int64_t q, int64_t k) { return rule(head, q, k); });
          }};
}

bool row_differs(const Head& head, const Values& a, const Values& b, int64_t query, float bound) {
  for (int64_t i = query * head.head_dim; i < (query + 1) * head.head_dim; ++i) {
    if (!(std::abs(a[i] - b[i]) <= bound)) return true;  // also where one of them is NaN
  }
  return false;
}

void check(const Version& version, const Head& head) {
  const Values out = version.attention(head);
  const Values right = by_rule("", kCausal).attention(head);
  int wrong_rows = 0, leaks = 0, blind = 0;
  for (int64_t query = 0; query < head.q_len; ++query) {
    wrong_rows += row_differs(head, out, right, query, 1e-5f);
  }
  for (int64_t key = 0; key < head.k_len; ++key) {
    Head changed = head;
    for (int64_t i = key * head.head_dim; i < (key + 1) * head.head_dim; ++i) {
      changed.k[i] += 1;
      changed.v[i] += 1;
    }
    const Values after = version.attention(changed);
    for (int64_t query = 0; query < head.q_len; ++query) {
      const bool is_future = key > position(head, query);
      const bool has_moved = row_differs(head, out, after, query, 0);  // to the bit
      leaks += is_future && has_moved;
      blind += !is_future && !has_moved;
    }
  }
  std::printf("%-20s %10d %5d %5d  %s\n", version.name, wrong_rows, leaks, blind,
              wrong_rows + leaks + blind == 0 ? "right" : "WRONG");
}

void print_pictures(const Head& head) {
  std::printf("right            sees the next    misses itself    top-left         whole tiles\n");
  for (int64_t query = 0; query < head.q_len; ++query) {
    for (const Rule& rule : {kCausal, kSeesNext, kMissesItself, kTopLeft, kWholeTiles}) {
      for (int64_t key = 0; key < head.k_len; ++key) {
        std::printf("%c ", rule(head, query, key) ? '#' : '.');
      }
      std::printf(" ");
    }
    std::printf("\n");
  }
}

}  // namespace

int main() {
  const std::vector<Version> versions = {
      by_rule("right", kCausal),
      {"library",
       [](const Head& head) {
         return course::by_library(head, keyhole::plan(keyhole::causal(), head.q_len, head.k_len));
       }},
      by_rule("sees_the_next", kSeesNext),
      by_rule("misses_itself", kMissesItself),
      by_rule("top_left", kTopLeft),
      by_rule("whole_tiles", kWholeTiles),
      {"scores_times_mask",
       [](const Head& head) { return misplaced_mask(head, Misplaced::scores_times_mask); }},
      {"weights_times_mask",
       [](const Head& head) { return misplaced_mask(head, Misplaced::weights_times_mask); }},
  };
  for (const int64_t q_len : {8, 3}) {
    const Head head = course::random_head(q_len, 8, 16);
    std::printf("%d queries, 8 keys\n", static_cast<int>(q_len));
    print_pictures(head);
    std::printf("\n%-20s %10s %5s %5s  %s\n", "version", "wrong_rows", "leaks", "blind", "verdict");
    for (const Version& version : versions) check(version, head);
    std::printf("\n");
  }
}
