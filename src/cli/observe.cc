#include "observe.h"

#include "cm/wire.h"

namespace nupa::cli {

Observation observe_all(cm::RuntimeDir& dir) {
  constexpr int kPatienceMs = 500;
  Observation found;
  for (const uint32_t slot : dir.processes()) {
    auto connection = dir.connect(slot);
    if (!connection) continue;
    cm::Message question{};
    question.magic = cm::kWireMagic;
    question.version = cm::kWireVersion;
    question.kind = static_cast<uint32_t>(cm::MessageKind::kObserver);
    if (!cm::send_message(connection->get(), question, nullptr, 0)) continue;
    if (!cm::wait_readable(connection->get(), kPatienceMs)) {
      found.silent.push_back(slot);
      continue;
    }
    auto received = cm::receive_message(connection->get());
    if (!received) continue;
    auto process = cm::check_hello(connection->get(), std::move(*received));
    if (process) found.processes.push_back({std::move(*process), std::move(*connection)});
  }
  return found;
}

}  // namespace nupa::cli
