#pragma once
/// What the user says by the environment.

namespace nupa::base {

/// The variable's value, or nullptr. Under libnupa_sockets.so also that of a variable which the process was started
/// with and has dropped since: programs that know nothing of NUPA (nginx) keep only the variables they know. The text
/// stays valid as getenv()'s does. Any thread.
const char* setting(const char* name);

}  // namespace nupa::base
