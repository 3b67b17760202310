// SPDX-License-Identifier: Apache-2.0
// The first open of a device, while other processes already see this one.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>

#include "../host/fixture.h"
#include "core/process.h"
#include "progress/lifecycle.h"

namespace nupa::core {
namespace {

/// Called in this thread before it makes an eventfd.
thread_local const std::function<void()>* before_eventfd = nullptr;

}  // namespace
}  // namespace nupa::core

extern "C" __attribute__((visibility("default"))) int eventfd_with_a_step(unsigned count, int flags) __asm__("eventfd");
int eventfd_with_a_step(unsigned count, int flags) {
  static auto* const real = reinterpret_cast<int (*)(unsigned, int)>(dlsym(RTLD_NEXT, "eventfd"));
  if (nupa::core::before_eventfd != nullptr) (*nupa::core::before_eventfd)();
  return real(count, flags);
}

namespace nupa::core {
namespace {

/// The socket of the only process in the folder; empty: there is none.
std::string socket_in(const std::string& folder) {
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string name = file.path().stem();
    if (file.path().extension() == ".sock" && std::all_of(name.begin(), name.end(), ::isdigit)) return file.path();
  }
  return {};
}

ptrdiff_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

TEST(CoreStart, Start_PeerConnectsAndExitsMeanwhile_Succeeds) {
  const host::test::Folder folder;
  const char* const set = getenv("NUPA_TRANSPORT");
  const std::string wanted = set == nullptr ? "" : set;
  setenv("NUPA_TRANSPORT", "roce", 1);
  host::test::FakeProcess other(3079);
  host::test::Token token;
  // The thread that sees to the process's end, which the first action starts, is counted.
  int action = 0;
  ASSERT_EQ(progress::at_exit(progress::ExitStage::kHost, {.run = [](void*) {}, .object = &action}), 0);
  const ptrdiff_t before = threads();
  bool came = false, is_served = false;
  // The port, which comes after the socket in the runtime directory, has an eventfd.
  const std::function<void()> come_and_go = [&] {
    const std::string path = came ? std::string() : socket_in(folder.path());
    if (path.empty()) return;
    came = true;
    const base::UniqueFd socket = host::test::connect_to(path);
    const int fds[] = {token.fd()};
    ASSERT_TRUE(socket && other.send_hello(socket.get()));
    ASSERT_TRUE(host::send_message(socket.get(), other.message(host::MessageKind::kChannel), fds, 1));
    is_served = threads() > before;
    // A thread that serves sees the end of the process next.
    EXPECT_TRUE(!is_served || host::wait_readable(socket.get(), host::test::kSoonMs));
  };
  before_eventfd = &come_and_go;
  const auto own = Process::acquire();
  before_eventfd = nullptr;
  setenv("NUPA_TRANSPORT", wanted.c_str(), 1);
  if (wanted.empty()) unsetenv("NUPA_TRANSPORT");
  ASSERT_TRUE(own) << own.error().what();
  ASSERT_TRUE(came);
  EXPECT_FALSE(is_served) << "by a thread that does not find everything";
  progress::forget_at_exit(&action);
  token.drop();
  EXPECT_TRUE(host::test::soon([&] { return token.closed(); })) << "it was met, and what it gave is closed";
}

}  // namespace
}  // namespace nupa::core
