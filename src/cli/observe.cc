// SPDX-License-Identifier: Apache-2.0
#include "cli/observe.h"

#include "cli/waiting.h"
#include "host/wire.h"

namespace nupa::cli {

Observation observe_all(host::RuntimeDir& dir) {
  constexpr int kTimeoutMs = 500;
  Observation found;
  const Waiting waiting("answers of the processes in " + dir.path());
  for (const uint32_t slot : dir.processes()) {
    auto connection = dir.connect(slot);
    if (!connection) continue;
    host::Message question{};
    question.magic = host::kWireMagic;
    question.version = host::kWireVersion;
    question.kind = static_cast<uint32_t>(host::MessageKind::kObserver);
    if (!host::send_message(connection->get(), question, nullptr, 0)) continue;
    if (!host::wait_readable(connection->get(), kTimeoutMs)) {
      found.silent.push_back(slot);
      continue;
    }
    auto received = host::receive_message(connection->get());
    if (!received) continue;
    auto process = host::check_hello(connection->get(), std::move(*received));
    if (process) found.processes.push_back({std::move(*process), std::move(*connection)});
  }
  return found;
}

}  // namespace nupa::cli
