// cli/bench/choice.cpp
#include "cli/bench/choice.h"

#include "cli/device.h"
#include "runtime/list_facts.h"
#include "runtime/registry.h"

namespace keyhole::bench {

Choice choice_for(const Case& c, Operation operation, const Lists& lists,
                  const AttentionOptions& options) {
  const FactsOf facts(lists);
  Request request = cli::request_for(c.device, operation, c.dtype, c.head_dim, c.head_dim);
  request.backend = options.backend;
  request.normalizer = c.normalizer;
  request.deterministic = options.deterministic;
  request.shares_kv_heads = c.heads != c.kv_heads;
  request.lists = &facts.get();
  return choose_call(kernel_table(), request);
}

}  // namespace keyhole::bench
