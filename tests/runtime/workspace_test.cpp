// tests/runtime/workspace_test.cpp
// Whose memory a workspace is, and what is refused. On a GPU: tests/gpu/workspace_test.cpp.
#include "runtime/workspace.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "keyhole/error.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

alignas(256) std::byte memory[1024];

// Notes what it is asked for.
struct Asked {
  std::vector<int64_t> bytes;
  AllocateWorkspace giving(void* what) {
    return [this, what](int64_t wanted) {
      bytes.push_back(wanted);
      return what;
    };
  }
};

TEST(WorkspaceOfCaller, IsWhatItBrought) {
  Asked asked;
  EXPECT_EQ(workspace_of_caller({memory, 512}, asked.giving(memory + 512), 512), memory);
  EXPECT_EQ(workspace_of_caller({memory, 1024}, asked.giving(nullptr), 512), memory);
  EXPECT_TRUE(asked.bytes.empty()) << "nobody needs to be asked";
}

TEST(WorkspaceOfCaller, IsWhatItsFunctionGivesOfExactlyThatSize) {
  Asked asked;
  EXPECT_EQ(workspace_of_caller({}, asked.giving(memory + 256), 300), memory + 256);
  EXPECT_EQ(asked.bytes, std::vector<int64_t>{300});
}

TEST(WorkspaceOfCaller, IsNullIfThereIsNone) {
  EXPECT_EQ(workspace_of_caller({}, {}, 300), nullptr);
}

TEST(WorkspaceOfCaller, IsRefusedIfItCannotServe) {
  Asked asked;
  const auto text_of = [](const Workspace& brought, const AllocateWorkspace& allocate) {
    return message_of([&] { workspace_of_caller(brought, allocate, 512); });
  };
  EXPECT_EQ(text_of({memory, 511}, asked.giving(memory)),
            "attention: the workspace has 511 bytes; this call needs 512. "
            "forward_workspace_bytes() and backward_workspace_bytes() tell how many");
  EXPECT_TRUE(asked.bytes.empty()) << "a workspace that is too small is a mistake";
  EXPECT_EQ(text_of({}, asked.giving(nullptr)),
            "while allocating a workspace of 512 bytes: the function of the caller returned null");
  const std::string rest =
      " begins 128 bytes behind a multiple of 256; a workspace must be aligned to 256 bytes, as "
      "what cudaMalloc gives";
  EXPECT_EQ(text_of({memory + 128, 512}, {}), "the memory of options.workspace" + rest);
  EXPECT_EQ(text_of({}, asked.giving(memory + 128)),
            "the memory that options.allocate returned" + rest);
}

TEST(WorkspaceOfCaller, ThrowsWhatItsFunctionThrows) {
  const AllocateWorkspace failing = [](int64_t) -> void* { throw std::out_of_range("full"); };
  EXPECT_THROW(workspace_of_caller({}, failing, 1), std::out_of_range);
}

}  // namespace
}  // namespace keyhole::test
