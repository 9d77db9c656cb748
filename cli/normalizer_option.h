// cli/normalizer_option.h
// --alpha and --top-k: how the scores of a query become its weights.
#pragma once

#include <cstdint>
#include <optional>

#include "keyhole/normalizer.h"

namespace CLI {
class App;
}

namespace keyhole::cli {

class NormalizerOption {
 public:
  void add_to(CLI::App& app);
  // Error(usage), in the name of the verb, for numbers that are none.
  Normalizer settle(const char* verb) const;

 private:
  double alpha_ = 1;
  std::optional<int64_t> top_k_;
};

}  // namespace keyhole::cli
