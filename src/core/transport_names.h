// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nupa/result.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nupa::core {

/// The words that NUPA_TRANSPORT accepts: "auto, shm, pool, roce". Any thread.
std::string transport_words();

/// The values that NUPA_TRANSPORT accepts, for messages: "auto, shm, pool, roce or a list of them". Any thread.
std::string transport_choices();

/// The indices in transport_entries() of the transports that `value` names, in order of cost: "auto" names all,
/// "shm,roce" two. Empty if a name is unknown, repeated or empty. Any thread.
std::optional<std::vector<size_t>> parse_transports(std::string_view value);

/// The same for the value of NUPA_TRANSPORT. EINVAL: it names no such transports. Any thread.
Result<std::vector<size_t>> chosen_transports();

/// The old name of the transport `name`; empty if it has none. Any thread.
std::string_view old_transport_name(std::string_view name);

}  // namespace nupa::core
