#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nupa::core {

/// A transport as users name it in NUPA_TRANSPORT and --transport, and as `nupa stat` shows it.
struct TransportName {
  std::string_view name;
  std::string_view old_name;  ///< still accepted, and beside the name in --json; empty: none
};

/// All transports, in order of cost. Any thread.
std::span<const TransportName> transport_names();

/// What NUPA_TRANSPORT accepts, for messages: "auto, shm, roce or a list of them". Any thread.
std::string transport_choices();

/// Places in transport_names() of the transports that `value` names, in order of cost: "auto" names all, "shm,roce"
/// two. Nothing if a name is unknown, repeated or empty. Any thread.
std::optional<std::vector<size_t>> parse_transports(std::string_view value);

/// The old name of the transport `name`; empty if it has none. Any thread.
std::string_view old_transport_name(std::string_view name);

}  // namespace nupa::core
