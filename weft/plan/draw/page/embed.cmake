# cmake -DOUT=FILE -DFOLDER=FOLDER -P embed.cmake: writes a header with the page's files as strings. The scripts are
# concatenated in order of dependency.
set(html page.html)
set(style page.css)
set(script format.js data.js theme.js layout.js draw.js panel.js overview.js details.js summary.js page.js)

set(text "// Made by weft/plan/draw/page/embed.cmake.\n#pragma once\n\n#include <string_view>\n\nnamespace weft {\n")
foreach(name html style script)
  string(APPEND text "\ninline constexpr std::string_view page_${name} =")
  foreach(file ${${name}})
    file(READ ${FOLDER}/${file} content)
    string(APPEND text "\n    R\"weftpage(${content})weftpage\"")
  endforeach()
  string(APPEND text ";\n")
endforeach()
string(APPEND text "\n}  // namespace weft\n")
file(WRITE ${OUT} "${text}")
