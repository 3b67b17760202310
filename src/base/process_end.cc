#include "base/process_end.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace nupa::base {
namespace {

constexpr size_t kMost = 8;
std::array<std::atomic<void (*)()>, kMost> g_handlers;
std::atomic<size_t> g_count{0};

}  // namespace

int at_process_end(void (*handler)()) {
  static const int registered = std::atexit(run_process_end);
  const size_t place = g_count;
  if (registered != 0 || place == kMost) return ENOMEM;
  g_handlers[place] = handler;
  g_count = place + 1;
  return 0;
}

void run_process_end() {
  for (size_t i = g_count; i-- > 0;)
    if (void (*handler)() = g_handlers[i].exchange(nullptr); handler != nullptr) handler();
}

}  // namespace nupa::base
