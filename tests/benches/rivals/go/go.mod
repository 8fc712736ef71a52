module rival

go 1.19
