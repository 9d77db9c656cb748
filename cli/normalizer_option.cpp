// cli/normalizer_option.cpp
#include "cli/normalizer_option.h"

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "cli/common.h"

namespace keyhole::cli {

void NormalizerOption::add_to(CLI::App& app) {
  app.add_option("--alpha", alpha_,
                 "1: softmax; up to 2: alpha-entmax, where most keys get a weight of 0")
      ->type_name("A");
  add_integer(app, "--top-k", top_k_, "only the keys with the K largest scores; default: all");
}

Normalizer NormalizerOption::settle(const char* verb) const {
  KEYHOLE_CHECK(alpha_ >= 1 && alpha_ <= 2, verb, ": --alpha is ", alpha_,
                "; accepted are numbers from 1 (softmax) to 2 (sparsemax), such as 1.5");
  KEYHOLE_CHECK(!top_k_ || *top_k_ >= 1, verb, ": --top-k is ", top_k_.value_or(0),
                "; it must be at least 1; leave it out for all keys");
  return {.alpha = alpha_, .top_k = top_k_.value_or(0)};
}

}  // namespace keyhole::cli
