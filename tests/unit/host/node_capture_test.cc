// SPDX-License-Identifier: Apache-2.0
/// Processes that ask a node for its packets: who gets them, and for how long.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "fixture.h"
#include "node_peers.h"

namespace nupa::host::test {
namespace {

class CmNodeCapture : public CmNode {
 protected:
  /// Asks with `fds` descriptors. Returns the kind of the answer, or the negative error of its end.
  int ask(int socket, size_t fds = 1) {
    const int fd = region_.get();
    if (!send_message(socket, process_.message(MessageKind::kCapture), &fd, fds)) return -EPIPE;
    if (!wait_readable(socket, kSoonMs)) return -ETIMEDOUT;
    const auto answer = receive_message(socket);
    return answer ? static_cast<int>(answer->message.kind) : -answer.error().code();
  }
  static constexpr int kTaken = static_cast<int>(MessageKind::kCaptured);
};

TEST_F(CmNodeCapture, OfThisUser_LastsUntilTheConnectionEnds) {
  base::UniqueFd socket = connect_to(socket_path());
  EXPECT_EQ(kTaken, ask(socket.get()));
  EXPECT_EQ(1u, witness_.captures.load());
  EXPECT_EQ(0u, witness_.capture_ends.load());
  EXPECT_TRUE(node_->peers().empty());
  socket.reset();
  EXPECT_TRUE(soon([&] { return witness_.capture_ends.load() == 1; }));
}

TEST_F(CmNodeCapture, WithoutARing_IsNone) {
  const base::UniqueFd socket = connect_to(socket_path());
  EXPECT_EQ(-ENOTCONN, ask(socket.get(), 0));
  EXPECT_EQ(0u, witness_.captures.load());
}

TEST_F(CmNodeCapture, ThatTheProcessRefuses_HasNoEnd) {
  witness_.refuses_captures = true;
  const base::UniqueFd socket = connect_to(socket_path());
  EXPECT_EQ(-ENOTCONN, ask(socket.get()));
  const base::UniqueFd speaking = enter(process_);
  EXPECT_EQ(0u, witness_.capture_ends.load());
}

TEST_F(CmNodeCapture, OfAnotherUser_GetsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "not root: no other user can be played";
  ASSERT_EQ(0, chmod(folder_.path().c_str(), 0777));
  ASSERT_EQ(0, chmod(socket_path().c_str(), 0777));
  EXPECT_EQ(0, in_child([&] {
              if (setresuid(kNobody, kNobody, kNobody) != 0) return 1;
              const base::UniqueFd socket = connect_to(socket_path());
              return ask(socket.get()) == -ENOTCONN ? 0 : 2;
            }));
  EXPECT_EQ(0u, witness_.captures.load());
}

}  // namespace
}  // namespace nupa::host::test
