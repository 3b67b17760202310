// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The figures of `nupa stat` as Prometheus reads them.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace nupa::cli {

/// Returns the text format 0.0.4 of Prometheus. `rows`: those that `nupa stat --json` prints. The queue pairs of a
/// process with the same device, type, state and transport are one sample, so the number of series does not grow with
/// that of queue pairs.
std::string prometheus_text(const nlohmann::json& rows);

/// Replaces a file at once: a reader finds the old text or the new one. Returns 0 or an errno value.
int replace_file(const std::string& path, const std::string& text);

}  // namespace nupa::cli
