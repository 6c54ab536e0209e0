# SPDX-License-Identifier: Apache-2.0
# Installs what the program says of itself: manual pages and completions. PROGRAM is the program, PREFIX where it is installed.
function(write_output file)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE "${PREFIX}/share/${file}" "${text}")
endfunction()

execute_process(COMMAND "${PROGRAM}" --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\n  [a-z]+  " commands "${help}")
write_output(man/man1/penstock.1 man)
foreach(command ${commands})
  string(STRIP "${command}" command)
  write_output(man/man1/penstock-${command}.1 man ${command})
endforeach()
write_output(bash-completion/completions/penstock completion bash)
write_output(zsh/site-functions/_penstock completion zsh)
write_output(fish/vendor_completions.d/penstock.fish completion fish)
message(STATUS "Installed manual pages and completions: ${PREFIX}/share")
