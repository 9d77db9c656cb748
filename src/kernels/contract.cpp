// src/kernels/contract.cpp
// Names and schedules as they appear in kernel names, messages and records.
#include "kernels/contract.h"

namespace keyhole {

const char* to_string(Operation operation) {
  return operation == Operation::forward ? "forward" : "backward";
}

std::string to_string(const BackwardSchedule& schedule) {
  std::string text = schedule.dq == DqOrder::by_queries ? "dq by query tile"
                     : schedule.dq == DqOrder::written  ? "dq written"
                     : schedule.dq == DqOrder::by_turns ? "dq by turns"
                                                        : "dq atomic";
  text += schedule.heads == SumOrder::atomic     ? ", dk and dv atomic"
          : schedule.heads == SumOrder::by_turns ? ", dk and dv by turns"
                                                 : ", dk and dv in order";
  if (schedule.key_lists == KeyListOrder::atomic) text += ", key lists atomic";
  if (schedule.key_lists == KeyListOrder::by_span) text += ", key lists by span";
  return text;
}

}  // namespace keyhole
