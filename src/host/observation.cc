// SPDX-License-Identifier: Apache-2.0
#include "host/observation.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "host/wire.h"

namespace nupa::host {

Observation observe_all(RuntimeDir& directory, int timeout_ms) {
  Observation found;
  std::vector<std::pair<uint32_t, base::UniqueFd>> asked;
  for (const uint32_t slot : directory.processes()) {
    auto connection = directory.connect(slot);
    if (!connection) continue;
    Message question{};
    question.magic = kWireMagic;
    question.version = kWireVersion;
    question.kind = static_cast<uint32_t>(MessageKind::kObserver);
    if (send_message(connection->get(), question, nullptr, 0)) asked.emplace_back(slot, std::move(*connection));
  }
  const int64_t deadline = base::now_ns() + timeout_ms * base::kNsPerMs;
  for (auto& [slot, connection] : asked) {
    const int64_t left = std::max<int64_t>(deadline - base::now_ns(), 0);
    if (!wait_readable(connection.get(), static_cast<int>(left / base::kNsPerMs))) {
      found.silent.push_back(slot);
      continue;
    }
    auto received = receive_message(connection.get());
    if (!received) continue;
    auto process = check_hello(connection.get(), std::move(*received));
    if (process) found.processes.push_back({std::move(*process), std::move(connection)});
  }
  return found;
}

}  // namespace nupa::host
