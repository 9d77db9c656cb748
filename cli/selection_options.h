// cli/selection_options.h
// --select and what goes with it: the attention and the indexer of a selection whose cost is asked
// for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "keyhole/selection_cost.h"

namespace CLI {
class App;
}

namespace keyhole::cli {

class SelectionOptions {
 public:
  void add_to(CLI::App& app);
  // Throws Error(usage) when options of a selection were given without --select.
  bool is_given(const char* verb) const;

  int64_t groups() const { return groups_.value_or(1); }
  // What choosing among the keys of `visible` would cost. heads: of the attention, which has no
  // default.
  SelectionReport report(const char* verb, const Plan& visible, std::optional<int64_t> batch,
                         std::optional<int64_t> heads, int64_t head_dim, DType dtype) const;

 private:
  struct Number {
    const char* name;
    std::optional<int64_t> SelectionOptions::* value;
    const char* help;
  };
  static const Number kNumbers[];  // all but --select

  std::optional<int64_t> k_, kv_heads_, v_head_dim_, latent_dim_, rope_head_dim_, index_heads_,
      index_dim_, groups_, shared_by_;
  std::string index_dtype_;
};

}  // namespace keyhole::cli
