// cli/selection_options.cpp
#include "cli/selection_options.h"

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "cli/common.h"

namespace keyhole::cli {
namespace {

constexpr const char* kHelpGroup = "options of a selection";

DType index_dtype_from(const char* verb, const std::string& text) {
  for (const DType dtype : {DType::e4m3, DType::bf16, DType::f16}) {
    if (text == to_string(dtype)) return dtype;
  }
  throw Error(ErrorKind::usage,
              say(verb, ": --index-dtype is \"", text, "\"; accepted are e4m3, bf16 and f16"));
}

}  // namespace

const SelectionOptions::Number SelectionOptions::kNumbers[] = {
    {"--kv-heads", &SelectionOptions::kv_heads_, "default: as many as --heads; latent heads: 1"},
    {"--v-head-dim", &SelectionOptions::v_head_dim_, "default: that of --head-dim"},
    {"--latent-dim", &SelectionOptions::latent_dim_, "of latent heads, such as 512"},
    {"--rope-head-dim", &SelectionOptions::rope_head_dim_, "of latent heads; default: 64"},
    {"--index-heads", &SelectionOptions::index_heads_,
     "of the indexer; 0: lists come from elsewhere; default: 64"},
    {"--index-dim", &SelectionOptions::index_dim_, "head_dim of the indexer; default: 128"},
    {"--groups", &SelectionOptions::groups_,
     "lists of a query, as kv heads share them; default: 1"},
    {"--shared-by", &SelectionOptions::shared_by_,
     "layers that use the lists of one indexer; default: 1"},
};

void SelectionOptions::add_to(CLI::App& app) {
  add_integer(app, "--select", k_, "what it costs to choose K of these keys for every query");
  app.get_option("--select")->type_name("K")->group(kHelpGroup);
  for (const Number& number : kNumbers) {
    add_integer(app, number.name, this->*number.value, number.help);
    app.get_option(number.name)->group(kHelpGroup);
  }
  app.add_option("--index-dtype", index_dtype_, "e4m3, bf16 or f16; default: e4m3")
      ->type_name("DTYPE")
      ->group(kHelpGroup);
}

bool SelectionOptions::is_given(const char* verb) const {
  const auto check = [&](const char* name, bool is_given) {
    KEYHOLE_CHECK(k_ || !is_given, verb, ": ", name,
                  " is for a selection; pass --select K too, or leave it out");
  };
  for (const Number& number : kNumbers) check(number.name, (this->*number.value).has_value());
  check("--index-dtype", !index_dtype_.empty());
  return k_.has_value();
}

SelectionReport SelectionOptions::report(const char* verb, const Plan& visible,
                                         std::optional<int64_t> batch, std::optional<int64_t> heads,
                                         int64_t head_dim, DType dtype) const {
  KEYHOLE_CHECK(heads, verb,
                ": --select needs the query heads of the attention; pass --heads N, and "
                "--kv-heads N where several share a key");
  SelectionCall call{.batch = batch.value_or(visible.shape().batch),
                     .q_len = visible.shape().q_len,
                     .k_len = visible.shape().k_len,
                     .k = *k_,
                     .q_heads = *heads,
                     .head_dim = head_dim,
                     .dtype = dtype,
                     .groups = groups(),
                     .visible = visible};
  call.v_head_dim = v_head_dim_.value_or(head_dim);
  call.latent_dim = latent_dim_.value_or(call.latent_dim);
  call.kv_heads = kv_heads_.value_or(call.latent_dim > 0 ? 1 : *heads);
  call.rope_head_dim = rope_head_dim_.value_or(call.rope_head_dim);
  call.index_heads = index_heads_.value_or(call.index_heads);
  call.index_dim = index_dim_.value_or(call.index_dim);
  call.shared_by = shared_by_.value_or(call.shared_by);
  if (!index_dtype_.empty()) call.index_dtype = index_dtype_from(verb, index_dtype_);
  return explain_selection(call);
}

}  // namespace keyhole::cli
