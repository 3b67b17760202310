// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/export.h>
#include <nupa/types.h>

#include <string>

namespace nupa::base {

/// The address in the usual notation of its family: "10.77.0.1", "fe80::1".
NUPA_EXPORT std::string gid_text(const Gid& gid);

}  // namespace nupa::base
