#include "observe.h"

#include "cm/wire.h"

namespace nupa::cli {

std::vector<Observed> observe_all(cm::RuntimeDir& dir) {
  constexpr int kPatienceMs = 500;
  std::vector<Observed> found;
  for (const uint32_t slot : dir.list()) {
    auto connection = dir.connect(slot);
    if (!connection) continue;
    cm::Message question{};
    question.magic = cm::kWireMagic;
    question.version = cm::kWireVersion;
    question.kind = static_cast<uint32_t>(cm::MessageKind::kObserver);
    if (!cm::send_message(connection->get(), question, nullptr, 0)) continue;
    if (!cm::wait_readable(connection->get(), kPatienceMs)) continue;
    auto received = cm::receive_message(connection->get());
    if (!received) continue;
    auto process = cm::check_hello(connection->get(), std::move(*received));
    if (process) found.push_back({std::move(*process), std::move(*connection)});
  }
  return found;
}

}  // namespace nupa::cli
