// src/select/requests.h
// What a call asks of the table of kernels.
#pragma once

#include "keyhole/select.h"
#include "runtime/select_registry.h"

namespace keyhole {

SelectRequest request_of(SelectOperation operation, const IndexerView& indexer, int64_t k,
                         const std::string& backend);
SelectRequest request_of(const TensorView& scores, const SelectOptions& options);
// Of an index loss, or its gradients.
SelectRequest request_of(SelectOperation operation, const IndexerView& indexer,
                         const AttentionTarget& target, const std::string& backend);

}  // namespace keyhole
